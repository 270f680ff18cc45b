//! The text of the recommendation that `replay` prints below the table.

use super::Row;
use crate::render::format;
use crate::replay::recommendation::{Advice, advise, runs_now, setting};
use crate::replay::{Outcome, Setup, Source, Trace};

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
        why,
    };
    let played = |name: &str| rows.iter().find(|row| row.outcome.name == name);
    let extra = if played(compared_with).is_none() {
        play(compared_with)
    } else {
        None
    };
    let Some(now) = played(compared_with).or(extra.as_ref()) else {
        return nothing(format!("none: {compared_with} cannot be played"));
    };
    let torch_calls = match played("torch").or((compared_with == "torch").then_some(now)) {
        Some(torch) => Some(torch.outcome.bill().driver_calls()),
        None => played("passthrough").and_then(|_| Some(play("torch")?.outcome.bill().driver_calls())),
    };
    let outcomes: Vec<Outcome> = rows.iter().map(|row| row.outcome.clone()).collect();
    let set = |name: &str| setting(name, &trace.source, &setup.settings);
    let smallest = |name: &str| played(name).and_then(|row| row.smallest);
    let (before, device) = (
        format::size(now.outcome.peak_reserved),
        format::size(setup.device_memory),
    );
    // A trace that is not whole does not tell what the job would have needed.
    let (served, enough) = match trace.is_at_least() {
        true => ("every recorded request", "a device of at least"),
        false => ("every request", "a device of"),
    };
    let recommend = |best: &Outcome, saves: u64, reason: &dyn Fn(&str) -> String| {
        let setting = set(best.name);
        let text = reason(setting.as_deref().unwrap_or(best.name));
        Recommendation {
            strategy: Some(best.name),
            setting,
            saves,
            compared_with,
            why: text + &price(best, &now.outcome) + caveat(best.name, &trace.source),
        }
    };
    match advise(&outcomes, &now.outcome, torch_calls, trace.duration_ns, |name| {
        set(name).is_some()
    }) {
        Advice::Saves { best, bytes } => recommend(best, bytes, &|setting| {
            let fits = smallest(best.name).map_or(String::new(), |smallest| {
                format!(", and needs {enough} {}", format::size(smallest))
            });
            format!(
                "{setting} reserves {} instead of {before} under {compared_with}: saves {} ({:.1}%){fits}",
                format::size(best.peak_reserved),
                format::size(bytes),
                bytes as f64 / now.outcome.peak_reserved.max(1) as f64 * 100.0,
            )
        }),
        Advice::Fits { best } => {
            // Requests failed under the present strategy, so its peak is too small to compare. The smallest devices are
            // compared instead.
            let (needs, needed) = (smallest(best.name), now.smallest);
            let saves = needed
                .zip(needs)
                .map_or(0, |(needed, needs)| needed.saturating_sub(needs));
            let size = |size: Option<u64>| size.map_or("any size".to_owned(), format::size);
            recommend(best, saves, &|setting| {
                format!(
                    "{setting} serves {served} on a device of {device}, where {compared_with} has no memory for \
                     {} of them. {} needs {enough} {}, {compared_with} one of {}",
                    format::count(now.outcome.failed),
                    best.name,
                    size(needs),
                    size(needed),
                )
            })
        }
        Advice::TooSlow { best, bytes } => {
            let more_ns = best.lasting_ns().saturating_sub(now.outcome.lasting_ns());
            let duration_ns = trace.duration_ns.unwrap_or_default();
            nothing(format!(
                "none: {} would reserve {} instead of {before} under {compared_with} (saves {}), but its driver calls \
                 and waits take {} more, {} of the {} that the trace lasts",
                set(best.name).unwrap_or_default(),
                format::size(best.peak_reserved),
                format::size(bytes),
                format::duration(more_ns),
                format::percent(Some(more_ns as f64 / duration_ns.max(1) as f64)),
                format::duration(duration_ns),
            ))
        }
        Advice::Nothing { best: Some(best) } => nothing(format!(
            "none: nothing to gain over the {before} under {compared_with}; {} would reserve {}",
            set(best.name).unwrap_or_default(),
            format::size(best.peak_reserved),
        )),
        Advice::Nothing { best: None } => nothing(format!(
            "none: no strategy that was played is worth setting instead of the job's own, {compared_with} ({before})"
        )),
        Advice::NoneFits => nothing(format!(
            "none: no setting that could be recommended serves every request on a device of {device}"
        )),
    }
}

/// The driver calls of `best` and their time; empty if both are at most twice those of the present strategy.
fn price(best: &Outcome, now: &Outcome) -> String {
    let (ours, theirs) = (best.bill(), now.bill());
    if ours.driver_calls() / 2 <= theirs.driver_calls() && ours.total_ns() / 2 <= theirs.total_ns() {
        return String::new();
    }
    format!(
        ". For that it calls the driver {} and takes {} with waits, {} {} and {}",
        format::times(ours.driver_calls()),
        format::duration(ours.total_ns()),
        now.name,
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
