//! The differences that a policy may make: the rows of docs/strategies.md, "What a policy changes of the driver's
//! behaviour", and nothing else. A rule looks at the two lines that a step printed.

use support::Strategy;

use super::program::Program;

/// What one step printed behind its number and kind, without the library and with it.
pub struct Pair<'a> {
    pub kind: &'a str,
    pub alone: &'a str,
    pub under: &'a str,
    pub strategy: Strategy,
    pub program: &'a Program,
}

pub struct Rule {
    pub name: &'static str,
    /// The kinds of steps; none: any kind, and the job has other memory from there on, so nothing more is compared.
    pub kinds: &'static [&'static str],
    pub accepts: fn(&Pair) -> bool,
}

fn under_a_policy(pair: &Pair) -> bool {
    pair.strategy.name != "passthrough"
}

fn numbers(line: &str) -> Vec<i64> {
    line.split([' ', ':']).filter_map(|word| word.parse().ok()).collect()
}

fn but_for(pair: &Pair, word: &str) -> Option<(i64, i64)> {
    let (before, one) = pair.alone.split_once(word)?;
    let (same, other) = pair.under.split_once(word)?;
    (before == same).then(|| Some((*numbers(one).first()?, *numbers(other).first()?)))?
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "cuMemAlloc during a capture is served, cuMemFree returns at once",
        kinds: &["strict_requests"],
        accepts: |pair| {
            let served = |line: &str| line.contains(" strict: 0 0 0 end:");
            under_a_policy(pair) && served(pair.under) && pair.alone.contains(" strict: 900 901 end:")
        },
    },
    Rule {
        name: "work may be done earlier",
        kinds: &["query_stream", "query_event"],
        accepts: |pair| {
            let answer = but_for(pair, " ready?");
            matches!(answer, Some((0 | 600, 0 | 600)))
        },
    },
    Rule {
        name: "free memory: blocks are rounded, and pools of the driver are trimmed by other calls",
        kinds: &["memory_info"],
        accepts: |pair| {
            under_a_policy(pair) && but_for(pair, " free ").is_some_and(|(one, other)| (one - other).abs() < 256 << 20)
        },
    },
    Rule {
        name: "memory: what a policy holds, another request lacks",
        kinds: &[],
        accepts: |pair| {
            let out = |line: &str| numbers(line).contains(&2);
            under_a_policy(pair) && pair.program.runs_short() && out(pair.alone) != out(pair.under)
        },
    },
    Rule {
        name: "a request of a full device: sixteenths are rounded",
        kinds: &["fill_device"],
        accepts: |pair| {
            let last = but_for(pair, " sixteenths ");
            under_a_policy(pair) && last.is_some_and(|(one, other)| (one - other).abs() <= 4)
        },
    },
    Rule {
        name: "naive_best_fit: a segment that one context holds cannot serve another",
        kinds: &["fill_device"],
        accepts: |pair| {
            let has_two = pair.program.steps.iter().any(|step| step.kind == "create_context");
            let fewer = but_for(pair, " sixteenths ").is_some_and(|(one, other)| other < one);
            pair.strategy.name == "naive_best_fit" && has_two && fewer
        },
    },
    Rule {
        name: "copies behind the bytes that were asked for are not refused inside the memory of a pool",
        kinds: &["copy_behind"],
        accepts: under_a_policy,
    },
    Rule {
        name: "a dma-buf of a block must begin at a page",
        kinds: &["dmabuf"],
        accepts: under_a_policy,
    },
];

pub fn accepting(pair: &Pair) -> Option<&'static Rule> {
    RULES
        .iter()
        .find(|rule| (rule.kinds.is_empty() || rule.kinds.contains(&pair.kind)) && (rule.accepts)(pair))
}
