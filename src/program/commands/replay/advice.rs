//! Which of the played strategies is worth setting, compared with what the job most likely runs now: the recommendation that
//! `replay` prints below the table.

use policy::{Settings, Strategy};

use super::Row;
use crate::render::format;
use crate::replay::{Setup, Source, Trace, strategies};

/// A strategy is worth setting only if it saves at least 1 / WORTH_IT of the bytes that the job reserves now.
const WORTH_IT: u64 = 100;
/// A peak counts as equal to the least peak if the difference is at most 1 / EQUAL of the least peak. Among
/// strategies with equal peaks the time of calls and waits decides.
const EQUAL: u64 = 200;
/// passthrough is recommended only if it makes at most this many driver calls for each call of PyTorch's allocator.
/// passthrough always reserves least, but makes a driver call for each request, which waits for the device or the
/// driver's locks.
const PASSTHROUGH_CALLS: f64 = 1.5;
/// A strategy is too slow to save memory if its calls and waits take 1 / TOO_SLOW of the trace's time more than those
/// of the present strategy. If those take longer than the trace did, the job ran on a device whose calls cost less,
/// such as the simulated GPU: then no strategy is too slow.
const TOO_SLOW: u64 = 10;

#[derive(serde::Serialize)]
pub struct Recommendation {
    pub strategy: Option<&'static str>,
    pub setting: Option<String>,
    /// The bytes that the recommended strategy saves.
    pub saves: u64,
    /// The strategy that the job most likely runs now.
    pub compared_with: &'static str,
    pub why: String,
}

/// The strategy that the job most likely runs now.
fn runs_now(source: &Source) -> &'static str {
    match source {
        // An imported trace was PyTorch's, or a log, whose job most likely was PyTorch's too.
        Source::Journal { strategy, .. } if strategy == "PyTorch" || strategy == "RMM" => "torch",
        // If the journal's strategy cannot be played, the comparison takes the default.
        Source::Journal { strategy, .. } => strategies()
            .find(|known| known == strategy)
            .unwrap_or(Strategy::Passthrough.name()),
        Source::Snapshot { expandable: true } => "torch_expandable",
        Source::Log | Source::Snapshot { expandable: false } => "torch",
    }
}

/// The setting that selects this strategy. `None` if no setting does, or if `source` does not show that the strategy
/// would get the same requests.
fn setting(name: &str, source: &Source, settings: &Settings) -> Option<String> {
    if name == "torch_expandable" {
        // A journal has PyTorch's requests for segments, not for tensors. It does not show which segments PyTorch would
        // request with another setting.
        let asked_of_torch = !matches!(source, Source::Journal { .. });
        return asked_of_torch.then(|| "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned());
    }
    let sizes = Strategy::parse(name)?.sizes().iter();
    let mut flags = String::new();
    for (flag, bytes) in sizes
        .map(|&(name, bytes)| (name, bytes(settings)))
        .filter(|&(_, bytes)| bytes > 0)
    {
        // The flags are in whole MiB. Other sizes can be played but not set.
        if !bytes.is_multiple_of(1 << 20) {
            return None;
        }
        flags += &format!(" {flag}={}", bytes >> 20);
    }
    Some(match source {
        // With PyTorch's cache, the library would see requests for the cache's segments instead of the requests in the
        // snapshot.
        Source::Snapshot { .. } if flags.is_empty() => format!("vramshim run --torch allocator --strategy {name}"),
        Source::Snapshot { .. } => format!("vramshim run --torch allocator --strategy {name} (with{flags})"),
        _ => format!("FLAGS_allocator_strategy={name}{flags}"),
    })
}

/// The best of the strategies that `settable` allows, and whether it is worth setting in place of `now`: because it serves
/// every request and `now` does not, or because it saves enough and is not too slow. `torch_calls` is the number of driver
/// calls of PyTorch's allocator, `duration_ns` how long the trace lasted, if these are known.
fn best<'a>(
    rows: &'a [Row],
    now: &Row,
    torch_calls: Option<u64>,
    duration_ns: Option<u64>,
    settable: impl Fn(&str) -> bool,
) -> (Option<&'a Row>, bool) {
    let now = &now.outcome;
    let has_few_calls = |calls: u64| torch_calls.is_some_and(|torch| calls as f64 <= torch as f64 * PASSTHROUGH_CALLS);
    let is_candidate = |row: &&Row| {
        let one = &row.outcome;
        let is_passthrough = one.name == Strategy::Passthrough.name();
        let other = one.name != now.name && settable(one.name) && one.failed == 0;
        other && (!is_passthrough || has_few_calls(one.bill().driver_calls()))
    };
    let of = |wanted: &dyn Fn(&Row) -> bool| {
        let candidates: Vec<&Row> = rows.iter().filter(|row| is_candidate(row) && wanted(row)).collect();
        let least = candidates.iter().map(|row| row.outcome.peak_reserved).min()?;
        let equal = candidates
            .into_iter()
            .filter(|row| row.outcome.peak_reserved - least <= least / EQUAL);
        equal.min_by_key(|row| (row.outcome.lasting_ns(), row.outcome.peak_reserved))
    };
    // The peak of a strategy that reserves up front says nothing about a saving, so the strategy is recommended only if
    // no other fits.
    let grows = |row: &Row| !Strategy::parse(row.outcome.name).is_some_and(Strategy::reserves_up_front);
    let is_fast = |row: &Row| {
        let more_ns = row.outcome.lasting_ns().saturating_sub(now.lasting_ns());
        duration_ns.is_none_or(|duration_ns| now.lasting_ns() > duration_ns || more_ns <= duration_ns / TOO_SLOW)
    };
    let fast = of(&|row| grows(row) && is_fast(row));
    if now.failed > 0 {
        let best = fast.or_else(|| of(&grows)).or_else(|| of(&|_| true));
        return (best, best.is_some());
    }
    let saved = fast.map_or(0, |fast| now.peak_reserved.saturating_sub(fast.outcome.peak_reserved));
    match saved >= now.peak_reserved.div_ceil(WORTH_IT).max(1) {
        true => (fast, true),
        false => (of(&grows), false),
    }
}

/// Builds the recommendation from the played strategies. `play` plays a strategy that is missing in `rows`.
pub fn recommendation(
    trace: &Trace,
    rows: &[Row],
    setup: &Setup,
    play: &dyn Fn(&str) -> Option<Row>,
) -> Recommendation {
    let compared_with = runs_now(&trace.source);
    let nothing = |why: String| Recommendation {
        strategy: None,
        setting: None,
        saves: 0,
        compared_with,
        why: format!("none: {why}"),
    };
    let played = |name: &str| rows.iter().find(|row| row.outcome.name == name);
    let extra = played(compared_with).is_none().then(|| play(compared_with)).flatten();
    let Some(now) = played(compared_with).or(extra.as_ref()) else {
        return nothing(format!("{compared_with} cannot be played"));
    };
    let torch_calls = match played("torch").or((compared_with == "torch").then_some(now)) {
        Some(torch) => Some(torch.outcome.bill().driver_calls()),
        None => played("passthrough").and_then(|_| Some(play("torch")?.outcome.bill().driver_calls())),
    };
    let set = |name: &str| setting(name, &trace.source, &setup.settings);
    let (best, is_worth) = best(rows, now, torch_calls, trace.duration_ns, |name| set(name).is_some());
    let before = format::size(now.outcome.peak_reserved);
    let device = format::size(setup.device_memory);
    let Some(best) = best else {
        return nothing(match now.outcome.failed {
            0 => format!(
                "no strategy that was played is worth setting instead of the job's own, {compared_with} ({before})"
            ),
            _ => format!("no setting that could be recommended serves every request on a device of {device}"),
        });
    };
    let (setting, name) = (set(best.outcome.name), best.outcome.name);
    let words = setting.as_deref().unwrap_or(name);
    let (reserves, price) = (format::size(best.outcome.peak_reserved), price(best, now));
    if !is_worth {
        return nothing(format!(
            "nothing that is worth its cost is to be gained over the {before} under {compared_with}; {words} would reserve \
             {reserves}{price}"
        ));
    }
    // A trace that is not whole does not tell what the job would have needed.
    let (served, enough) = match trace.is_at_least() {
        true => ("every recorded request", "a device of at least"),
        false => ("every request", "a device of"),
    };
    let size = |size: Option<u64>| size.map_or("any size".to_owned(), format::size);
    let (saves, why) = if now.outcome.failed == 0 {
        let bytes = now.outcome.peak_reserved - best.outcome.peak_reserved;
        let share = format::percent(Some(bytes as f64 / now.outcome.peak_reserved.max(1) as f64));
        let (saved, needs) = (format::size(bytes), size(best.smallest));
        let why = format!(
            "{words} reserves {reserves} instead of {before} under {compared_with}: saves {saved} ({share}), and needs \
             {enough} {needs}"
        );
        (bytes, why)
    } else {
        // The peak of a strategy under which requests failed is too small to compare. The smallest devices are compared.
        let bytes = now
            .smallest
            .unwrap_or(0)
            .saturating_sub(best.smallest.unwrap_or(u64::MAX));
        let (failed, needs, needed) = (
            format::count(now.outcome.failed),
            size(best.smallest),
            size(now.smallest),
        );
        let why = format!(
            "{words} serves {served} on a device of {device}, where {compared_with} has no memory for {failed} of them. \
             {name} needs {enough} {needs}, {compared_with} one of {needed}"
        );
        (bytes, why)
    };
    Recommendation {
        strategy: Some(name),
        saves,
        compared_with,
        why: why + &price + caveat(name, &trace.source),
        setting,
    }
}

/// The driver calls of `best` and their time; empty if both are at most twice those of the present strategy.
fn price(best: &Row, now: &Row) -> String {
    let (ours, theirs) = (best.outcome.bill(), now.outcome.bill());
    if ours.driver_calls() / 2 <= theirs.driver_calls() && ours.total_ns() / 2 <= theirs.total_ns() {
        return String::new();
    }
    format!(
        ". For that it calls the driver {} and takes {} with waits, {} {} and {}",
        format::times(ours.driver_calls()),
        format::duration(ours.total_ns()),
        now.outcome.name,
        format::times(theirs.driver_calls()),
        format::duration(theirs.total_ns()),
    )
}

/// What a user must know before setting the strategy.
fn caveat(name: &str, source: &Source) -> &'static str {
    match (name, source) {
        ("torch_expandable", _) | (_, Source::Journal { .. }) => "",
        _ => {
            ". For PyTorch's tensors run with --torch allocator, or PyTorch's own cache stands between them and the library"
        }
    }
}

#[cfg(test)]
mod tests {
    use prices::{Bill, Call};

    use super::*;
    use crate::replay::Outcome;

    /// A row whose calls take a nanosecond each.
    fn row(name: &'static str, peak_reserved: u64, driver_calls: u64, failed: u64) -> Row {
        let mut bill = Bill::default();
        (0..driver_calls).for_each(|_| bill.add(Call::Map, 1));
        let outcome = Outcome {
            name,
            peak_reserved,
            repetitions: vec![bill],
            failed,
        };
        Row {
            outcome,
            smallest: None,
        }
    }

    #[test]
    fn memory_decides_and_time_and_calls_among_equals() {
        let growth = |bytes, failed| row("auto_growth", bytes, 300, failed);
        let expandable = |bytes, calls| row("torch_expandable", bytes, calls, 0);
        let naive = || row("naive_best_fit", 50_000, 1, 0);
        let through = |calls| row("passthrough", 90_000, calls, 0);
        // Failed requests now, the trace's time, the others, the best of them and whether it is worth setting.
        let cases = [
            // The least peak wins, and among peaks that differ by at most 0.5% calls decide.
            (
                0,
                None,
                vec![growth(90_000, 0), expandable(90_450, 50)],
                "torch_expandable",
                true,
            ),
            (
                0,
                None,
                vec![growth(90_000, 0), expandable(90_451, 50)],
                "auto_growth",
                true,
            ),
            // Less than a hundredth is nothing.
            (0, None, vec![growth(99_001, 0)], "auto_growth", false),
            (0, None, vec![row("torch", 100_000, 100, 0)], "-", false),
            (0, None, vec![row("paddle_auto_growth", 50_000, 9, 0)], "-", false),
            // What reserves up front saves nothing, but may fit.
            (0, None, vec![naive()], "-", false),
            (3, None, vec![naive()], "naive_best_fit", true),
            (3, None, vec![naive(), growth(90_000, 0)], "auto_growth", true),
            (3, None, vec![growth(90_000, 1)], "-", false),
            // passthrough needs few calls.
            (0, None, vec![through(150)], "passthrough", true),
            (0, None, vec![through(151)], "-", false),
            // What takes a tenth of the time saves nothing, but may fit.
            (0, Some(2000), vec![growth(90_000, 0)], "auto_growth", true),
            (0, Some(1999), vec![growth(90_000, 0)], "auto_growth", false),
            (3, Some(1999), vec![growth(90_000, 0)], "auto_growth", true),
            (
                3,
                Some(1999),
                vec![growth(90_000, 0), expandable(95_000, 150)],
                "torch_expandable",
                true,
            ),
            // A trace of no real device.
            (0, Some(99), vec![growth(90_000, 0)], "auto_growth", true),
        ];
        for (failed, duration_ns, others, name, is_worth) in cases {
            let now = row("torch", 100_000, 100, failed);
            let (found, worth) = best(&others, &now, Some(100), duration_ns, |name| {
                !name.starts_with("paddle")
            });
            let told = (found.map_or("-", |row| row.outcome.name), worth);
            assert_eq!(told, (name, is_worth), "{failed} {duration_ns:?}");
        }
    }
}
