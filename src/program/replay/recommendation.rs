//! Decides which of the played strategies is worth setting, compared with what the job most likely runs now.

use policy::{Settings, Strategy};

use super::gathering::Source;
use super::play::{Outcome, strategies};

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

#[derive(Debug, PartialEq)]
pub enum Advice<'a> {
    /// `best` reserves `bytes` less than the present strategy.
    Saves { best: &'a Outcome, bytes: u64 },
    /// `best` serves every request on this device; the present strategy does not.
    Fits { best: &'a Outcome },
    /// `best` reserves `bytes` less than the present strategy, but its calls and waits take too long. No other strategy
    /// that can be set saves enough.
    TooSlow { best: &'a Outcome, bytes: u64 },
    /// No played strategy that can be set saves enough. `best` is the best of these strategies, if there is one.
    Nothing { best: Option<&'a Outcome> },
    /// Neither the present strategy nor any strategy that can be set serves every request on this device.
    NoneFits,
}

/// The strategy that the job most likely runs now.
pub fn runs_now(source: &Source) -> &'static str {
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
pub fn setting(name: &str, source: &Source, settings: &Settings) -> Option<String> {
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

/// Chooses the advice. `torch_calls` is the number of driver calls of PyTorch's allocator; `None` if it is not known.
/// `duration_ns` is how long the trace lasted, if it says so.
pub fn advise<'a>(
    outcomes: &'a [Outcome],
    now: &Outcome,
    torch_calls: Option<u64>,
    duration_ns: Option<u64>,
    settable: impl Fn(&str) -> bool,
) -> Advice<'a> {
    let few_calls = |calls: u64| torch_calls.is_some_and(|torch| calls as f64 <= torch as f64 * PASSTHROUGH_CALLS);
    let candidates = || {
        outcomes
            .iter()
            .filter(|outcome| outcome.name != now.name && settable(outcome.name))
            .filter(|outcome| outcome.name != Strategy::Passthrough.name() || few_calls(outcome.bill().driver_calls()))
    };
    // The peak of a strategy that reserves up front says nothing about a saving, so the strategy is recommended only if
    // no other fits.
    let reserves_up_front = |name: &str| Strategy::parse(name).is_some_and(Strategy::reserves_up_front);
    let growing = || candidates().filter(|outcome| !reserves_up_front(outcome.name) && outcome.failed == 0);
    let too_slow = |outcome: &Outcome| {
        let more_ns = outcome.lasting_ns().saturating_sub(now.lasting_ns());
        duration_ns.is_some_and(|duration_ns| now.lasting_ns() <= duration_ns && more_ns > duration_ns / TOO_SLOW)
    };
    let saved = |best: &Outcome| {
        let bytes = now.peak_reserved.saturating_sub(best.peak_reserved);
        (bytes > 0 && bytes >= now.peak_reserved.div_ceil(WORTH_IT)).then_some(bytes)
    };
    if now.failed > 0 {
        let fitting = best_of(growing().filter(|outcome| !too_slow(outcome))).or_else(|| best_of(growing()));
        return match fitting.or_else(|| best_of(candidates().filter(|outcome| outcome.failed == 0))) {
            Some(best) => Advice::Fits { best },
            None => Advice::NoneFits,
        };
    }
    let fast = best_of(growing().filter(|outcome| !too_slow(outcome)));
    if let Some((best, bytes)) = fast.and_then(|best| Some((best, saved(best)?))) {
        return Advice::Saves { best, bytes };
    }
    let slow = best_of(growing().filter(|outcome| too_slow(outcome)));
    match slow.and_then(|best| Some((best, saved(best)?))) {
        Some((best, bytes)) => Advice::TooSlow { best, bytes },
        None => Advice::Nothing { best: fast.or(slow) },
    }
}

fn best_of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<&'a Outcome> {
    let outcomes: Vec<_> = outcomes.collect();
    let least = outcomes.iter().map(|outcome| outcome.peak_reserved).min()?;
    let equal = outcomes
        .into_iter()
        .filter(|outcome| outcome.peak_reserved - least <= least / EQUAL);
    equal.min_by_key(|outcome| (outcome.lasting_ns(), outcome.peak_reserved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prices::{Bill, Call};

    /// An outcome whose calls take a nanosecond each.
    fn outcome(name: &'static str, peak_reserved: u64, driver_calls: u64, failed: u64) -> Outcome {
        let mut bill = Bill::default();
        (0..driver_calls).for_each(|_| bill.add(Call::Map, 1));
        Outcome {
            name,
            peak_reserved,
            repetitions: vec![bill],
            failed,
        }
    }

    fn name(advice: &Advice) -> String {
        match advice {
            Advice::Saves { best, bytes } => format!("{} saves {bytes}", best.name),
            Advice::Fits { best } => format!("{} fits", best.name),
            Advice::TooSlow { best, bytes } => format!("{} would save {bytes}", best.name),
            Advice::Nothing { best } => format!("nothing, {}", best.map_or("-", |best| best.name)),
            Advice::NoneFits => "none fits".to_owned(),
        }
    }

    /// The advice for a job that reserves 100,000 bytes with 100 calls under PyTorch's cache.
    fn advised(failed: u64, duration_ns: Option<u64>, others: &[Outcome]) -> String {
        let now = outcome("torch", 100_000, 100, failed);
        let settable = |name: &str| !name.starts_with("paddle");
        name(&advise(others, &now, Some(100), duration_ns, settable))
    }

    #[test]
    fn memory_decides_and_time_and_calls_among_equals() {
        let growth = |bytes, failed| outcome("auto_growth", bytes, 300, failed);
        let expandable = |bytes, calls| outcome("torch_expandable", bytes, calls, 0);
        let naive = || outcome("naive_best_fit", 50_000, 1, 0);
        let through = |calls| outcome("passthrough", 90_000, calls, 0);
        for (failed, duration_ns, others, expected) in [
            // The least peak wins, and among peaks that differ by at most 0.5% calls decide.
            (
                0,
                None,
                vec![growth(90_000, 0), expandable(90_450, 50)],
                "torch_expandable saves 9550",
            ),
            (
                0,
                None,
                vec![growth(90_000, 0), expandable(90_451, 50)],
                "auto_growth saves 10000",
            ),
            // Less than a hundredth is nothing.
            (0, None, vec![growth(99_001, 0)], "nothing, auto_growth"),
            (0, None, vec![growth(120_000, 0)], "nothing, auto_growth"),
            (0, None, vec![outcome("torch", 100_000, 100, 0)], "nothing, -"),
            (0, None, vec![outcome("paddle_auto_growth", 50_000, 9, 0)], "nothing, -"),
            // What reserves up front saves nothing, but may fit.
            (0, None, vec![naive()], "nothing, -"),
            (3, None, vec![naive()], "naive_best_fit fits"),
            (3, None, vec![naive(), growth(90_000, 0)], "auto_growth fits"),
            (3, None, vec![growth(90_000, 1)], "none fits"),
            (
                0,
                None,
                vec![growth(90_000, 1), expandable(95_000, 9)],
                "torch_expandable saves 5000",
            ),
            // passthrough needs few calls.
            (0, None, vec![through(150)], "passthrough saves 10000"),
            (0, None, vec![through(151)], "nothing, -"),
            (3, None, vec![through(151)], "none fits"),
            // What takes a tenth of the time saves nothing, but may fit.
            (0, Some(2000), vec![growth(90_000, 0)], "auto_growth saves 10000"),
            (0, Some(1999), vec![growth(90_000, 0)], "auto_growth would save 10000"),
            (
                0,
                Some(1999),
                vec![growth(90_000, 0), expandable(95_000, 150)],
                "torch_expandable saves 5000",
            ),
            (3, Some(1999), vec![growth(90_000, 0)], "auto_growth fits"),
            (
                3,
                Some(1999),
                vec![growth(90_000, 0), expandable(95_000, 150)],
                "torch_expandable fits",
            ),
            // A trace of no real device.
            (0, Some(99), vec![growth(90_000, 0)], "auto_growth saves 10000"),
        ] {
            let told = advised(failed, duration_ns, &others);
            assert_eq!(told, expected, "{failed} {duration_ns:?} {others:?}");
        }
        // A job that repeats itself pays the first repetition once.
        let first = growth(90_000, 0);
        let settled = Outcome {
            repetitions: vec![first.repetitions[0], Bill::default(), Bill::default()],
            ..first
        };
        assert_eq!(advised(0, Some(1999), &[settled]), "auto_growth saves 10000");
    }
}
