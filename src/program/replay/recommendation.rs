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
        .map(|size| (size.name, (size.bytes)(settings)))
        .filter(|&(_, bytes)| bytes > 0)
    {
        // The flags are in whole MiB. Other sizes can be played but not set.
        if !bytes.is_multiple_of(1 << 20) {
            return None;
        }
        flags += &format!(" {flag}={}", bytes >> 20);
    }
    if settings.tight && name == Strategy::AutoGrowth.name() {
        flags += " VRAMSHIM_TIGHT=1";
    }
    Some(match source {
        // With PyTorch's cache, the library would see requests for the cache's segments instead of the requests in the
        // snapshot.
        Source::Snapshot { .. } => format!("vramshim run --torch allocator --strategy {name}{}", with(&flags)),
        _ => format!("FLAGS_allocator_strategy={name}{flags}"),
    })
}

/// The words that add flags to a command.
fn with(flags: &str) -> String {
    match flags {
        "" => String::new(),
        flags => format!(" (with{flags})"),
    }
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

    fn advised(now: &Outcome, others: &[Outcome]) -> String {
        advised_in(None, now, others)
    }

    fn advised_in(duration_ns: Option<u64>, now: &Outcome, others: &[Outcome]) -> String {
        let settable = |name: &str| !name.starts_with("paddle");
        name(&advise(others, now, Some(100), duration_ns, settable))
    }

    #[test]
    fn the_least_peak_wins_and_calls_decide_among_equals() {
        let now = outcome("torch", 100_000, 100, 0);
        let growth = outcome("auto_growth", 90_000, 300, 0);
        let close = outcome("torch_expandable", 90_450, 50, 0);
        let apart = outcome("torch_expandable", 90_451, 50, 0);
        assert_eq!(advised(&now, &[growth.clone(), close]), "torch_expandable saves 9550");
        assert_eq!(advised(&now, &[growth, apart]), "auto_growth saves 10000");
    }

    #[test]
    fn less_than_a_hundredth_is_nothing() {
        let now = outcome("torch", 100_000, 100, 0);
        assert_eq!(
            advised(&now, &[outcome("auto_growth", 99_000, 9, 0)]),
            "auto_growth saves 1000"
        );
        assert_eq!(
            advised(&now, &[outcome("auto_growth", 99_001, 9, 0)]),
            "nothing, auto_growth"
        );
        assert_eq!(
            advised(&now, &[outcome("auto_growth", 120_000, 9, 0)]),
            "nothing, auto_growth"
        );
        assert_eq!(advised(&now, std::slice::from_ref(&now)), "nothing, -");
        assert_eq!(
            advised(&now, &[outcome("paddle_auto_growth", 50_000, 9, 0)]),
            "nothing, -"
        );
    }

    #[test]
    fn what_reserves_up_front_saves_nothing_but_may_fit() {
        let now = outcome("torch", 100_000, 100, 0);
        let naive = outcome("naive_best_fit", 50_000, 1, 0);
        assert_eq!(advised(&now, std::slice::from_ref(&naive)), "nothing, -");
        let failing = outcome("torch", 100_000, 100, 3);
        assert_eq!(advised(&failing, std::slice::from_ref(&naive)), "naive_best_fit fits");
        let growth = outcome("auto_growth", 90_000, 300, 0);
        assert_eq!(advised(&failing, &[naive, growth.clone()]), "auto_growth fits");
        let both = [outcome("auto_growth", 90_000, 300, 1)];
        assert_eq!(advised(&failing, &both), "none fits");
        let saving = [both[0].clone(), outcome("torch_expandable", 95_000, 9, 0)];
        assert_eq!(advised(&now, &saving), "torch_expandable saves 5000");
    }

    #[test]
    fn passthrough_needs_few_calls() {
        let now = outcome("torch", 100_000, 100, 0);
        assert_eq!(
            advised(&now, &[outcome("passthrough", 90_000, 150, 0)]),
            "passthrough saves 10000"
        );
        assert_eq!(advised(&now, &[outcome("passthrough", 90_000, 151, 0)]), "nothing, -");
        let failing = outcome("torch", 100_000, 100, 3);
        assert_eq!(
            advised(&failing, &[outcome("passthrough", 90_000, 151, 0)]),
            "none fits"
        );
    }

    #[test]
    fn what_takes_a_tenth_of_the_time_saves_nothing_but_may_fit() {
        let now = outcome("torch", 100_000, 100, 0);
        let growth = outcome("auto_growth", 90_000, 300, 0);
        let expandable = outcome("torch_expandable", 95_000, 150, 0);
        let only = std::slice::from_ref(&growth);
        assert_eq!(advised_in(Some(2000), &now, only), "auto_growth saves 10000");
        assert_eq!(advised_in(Some(1999), &now, only), "auto_growth would save 10000");
        let both = [growth.clone(), expandable];
        assert_eq!(advised_in(Some(1999), &now, &both), "torch_expandable saves 5000");
        let failing = outcome("torch", 100_000, 100, 3);
        assert_eq!(advised_in(Some(1999), &failing, only), "auto_growth fits");
        assert_eq!(advised_in(Some(1999), &failing, &both), "torch_expandable fits");
        assert_eq!(
            advised_in(Some(99), &now, only),
            "auto_growth saves 10000",
            "a trace of no real device"
        );
        // A job that repeats itself pays the first repetition once.
        let settled = Outcome {
            repetitions: vec![growth.repetitions[0], Bill::default(), Bill::default()],
            ..growth
        };
        assert_eq!(advised_in(Some(1999), &now, &[settled]), "auto_growth saves 10000");
    }

    #[test]
    fn settings_are_what_can_be_set() {
        let sizes = |chunk_bytes| Settings {
            chunk_bytes,
            ..Settings::default()
        };
        let journal = Source::Journal {
            strategy: "auto_growth".to_owned(),
            environment: Vec::new(),
        };
        let snapshot = Source::Snapshot { expandable: false };
        assert_eq!(
            setting("auto_growth", &journal, &sizes(32 << 20)).as_deref(),
            Some("FLAGS_allocator_strategy=auto_growth FLAGS_auto_growth_chunk_size_in_mb=32")
        );
        let tight = Settings {
            tight: true,
            ..sizes(0)
        };
        assert_eq!(
            setting("auto_growth", &journal, &tight).as_deref(),
            Some("FLAGS_allocator_strategy=auto_growth VRAMSHIM_TIGHT=1")
        );
        assert_eq!(
            setting("naive_best_fit", &journal, &tight).as_deref(),
            Some("FLAGS_allocator_strategy=naive_best_fit")
        );
        assert_eq!(setting("auto_growth", &journal, &sizes(1000)), None);
        assert_eq!(
            setting("auto_growth", &snapshot, &sizes(0)).as_deref(),
            Some("vramshim run --torch allocator --strategy auto_growth")
        );
        assert_eq!(
            setting("auto_growth", &snapshot, &sizes(32 << 20)).as_deref(),
            Some("vramshim run --torch allocator --strategy auto_growth (with FLAGS_auto_growth_chunk_size_in_mb=32)")
        );
        assert_eq!(
            setting("torch_expandable", &Source::Log, &sizes(0)).as_deref(),
            Some("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        );
        assert_eq!(setting("torch_expandable", &journal, &sizes(0)), None);
        for model in ["torch", "paddle_auto_growth", "paddle_naive_best_fit"] {
            assert_eq!(setting(model, &Source::Log, &sizes(0)), None);
        }
        assert_eq!(runs_now(&journal), "auto_growth");
        assert_eq!(runs_now(&snapshot), "torch");
        assert_eq!(runs_now(&Source::Snapshot { expandable: true }), "torch_expandable");
    }
}
