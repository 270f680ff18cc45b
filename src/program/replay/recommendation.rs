//! Decides which of the played strategies is worth setting, compared with what the job most likely runs now.

use policy::{Settings, Strategy};

use super::gathering::Source;
use super::play::{Outcome, strategies};

/// A strategy is worth setting only if it saves at least 1 / WORTH_IT of the bytes that the job reserves now.
const WORTH_IT: u64 = 100;
/// A peak counts as equal to the least peak if the difference is at most 1 / EQUAL of the least peak. Among
/// strategies with equal peaks the number of driver calls decides.
const EQUAL: u64 = 200;
/// passthrough is recommended only if it makes at most this many driver calls for each call of PyTorch's allocator.
/// passthrough always reserves least, but makes a driver call for each request, which waits for the device or the
/// driver's locks.
const PASSTHROUGH_CALLS: f64 = 1.5;

#[derive(Debug, PartialEq)]
pub enum Advice<'a> {
    /// `best` reserves `bytes` less than the present strategy.
    Saves { best: &'a Outcome, bytes: u64 },
    /// `best` serves every request on this device; the present strategy does not.
    Fits { best: &'a Outcome },
    /// No played strategy that can be set saves enough. `best` is the best of these strategies, if there is one.
    Nothing { best: Option<&'a Outcome> },
    /// Neither the present strategy nor any strategy that can be set serves every request on this device.
    NoneFits,
}

/// The strategy that the job most likely runs now.
pub fn runs_now(source: &Source) -> &'static str {
    match source {
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
    let mut text = format!("FLAGS_allocator_strategy={name}");
    for (flag, bytes) in sizes
        .map(|size| (size.name, (size.bytes)(settings)))
        .filter(|&(_, bytes)| bytes > 0)
    {
        // The flags are in whole MiB. Other sizes can be played but not set.
        if !bytes.is_multiple_of(1 << 20) {
            return None;
        }
        text += &format!(" {flag}={}", bytes >> 20);
    }
    if matches!(source, Source::Snapshot { .. }) {
        // With PyTorch's cache, the library would see requests for the cache's segments instead of the requests in the
        // snapshot.
        text += " PYTORCH_NO_CUDA_MEMORY_CACHING=1";
    }
    Some(text)
}

/// Chooses the advice. `torch_calls` is the number of driver calls of PyTorch's allocator; `None` if it is not known.
pub fn advise<'a>(
    outcomes: &'a [Outcome],
    now: &Outcome,
    torch_calls: Option<u64>,
    settable: impl Fn(&str) -> bool,
) -> Advice<'a> {
    let few_calls = |calls: u64| torch_calls.is_some_and(|torch| calls as f64 <= torch as f64 * PASSTHROUGH_CALLS);
    let candidates = || {
        outcomes
            .iter()
            .filter(|outcome| outcome.name != now.name && settable(outcome.name))
            .filter(|outcome| outcome.name != Strategy::Passthrough.name() || few_calls(outcome.driver_calls))
    };
    // The peak of a strategy that reserves up front says nothing about a saving, so the strategy is recommended only if
    // no other fits.
    let reserves_up_front = |name: &str| Strategy::parse(name).is_some_and(Strategy::reserves_up_front);
    let growing = candidates().filter(|outcome| !reserves_up_front(outcome.name));
    let best = best_of(growing.filter(|outcome| outcome.failed == 0));
    match (now.failed, best) {
        (0, Some(best)) => {
            let bytes = now.peak_reserved.saturating_sub(best.peak_reserved);
            match bytes > 0 && bytes >= now.peak_reserved.div_ceil(WORTH_IT) {
                true => Advice::Saves { best, bytes },
                false => Advice::Nothing { best: Some(best) },
            }
        }
        (0, None) => Advice::Nothing { best: None },
        (_, Some(best)) => Advice::Fits { best },
        (_, None) => match best_of(candidates().filter(|outcome| outcome.failed == 0)) {
            Some(best) => Advice::Fits { best },
            None => Advice::NoneFits,
        },
    }
}

fn best_of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<&'a Outcome> {
    let outcomes: Vec<_> = outcomes.collect();
    let least = outcomes.iter().map(|outcome| outcome.peak_reserved).min()?;
    let equal = outcomes
        .into_iter()
        .filter(|outcome| outcome.peak_reserved - least <= least / EQUAL);
    equal.min_by_key(|outcome| (outcome.driver_calls, outcome.peak_reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &'static str, peak_reserved: u64, driver_calls: u64, failed: u64) -> Outcome {
        Outcome {
            name,
            peak_reserved,
            driver_calls,
            synchronisations: None,
            failed,
        }
    }

    fn name(advice: &Advice) -> String {
        match advice {
            Advice::Saves { best, bytes } => format!("{} saves {bytes}", best.name),
            Advice::Fits { best } => format!("{} fits", best.name),
            Advice::Nothing { best } => format!("nothing, {}", best.map_or("-", |best| best.name)),
            Advice::NoneFits => "none fits".to_owned(),
        }
    }

    fn advised(now: &Outcome, others: &[Outcome]) -> String {
        name(&advise(others, now, Some(100), |name| !name.starts_with("paddle")))
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
        assert_eq!(setting("auto_growth", &journal, &sizes(1000)), None);
        assert_eq!(
            setting("auto_growth", &snapshot, &sizes(0)).as_deref(),
            Some("FLAGS_allocator_strategy=auto_growth PYTORCH_NO_CUDA_MEMORY_CACHING=1")
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
