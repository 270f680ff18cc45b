//! What each strategy would have needed, as the page of `report` shows it.

use std::path::Path;

use super::settings_of;
use crate::replay::{self, Setup, Trace, play};
use crate::report::{Played, Replay};

/// Plays the requests of a journal's device. `None` if the journal has no requests that can be played, if its requests are
/// the segments of PyTorch's cache, or if the size of the device is not known.
pub fn for_report(journal: &Path, device: i16) -> Option<Replay> {
    // The segments of PyTorch's cache say little of what its tensors need.
    let trace = Trace::load(journal, Some(device))
        .ok()
        .filter(|trace| trace.not_known("torch").is_none())?;
    let setup = Setup {
        settings: settings_of(&trace.environment),
        device_memory: trace.device_memory?,
        prices: Default::default(),
        lag_ns: 0,
        repetitions: 1,
    };
    let played = |name| {
        let outcome = play(&trace, name, &setup);
        Played {
            name,
            not_known: trace.not_known(name),
            peak_reserved: outcome.as_ref().map(|outcome| outcome.peak_reserved),
            driver_ns: outcome.as_ref().map(|outcome| outcome.bill().driver_ns),
            failed: outcome.as_ref().map(|outcome| outcome.failed),
        }
    };
    Some(Replay {
        device,
        device_memory: setup.device_memory,
        peak_live: trace.peak_live,
        at_least: trace.is_at_least(),
        strategies: replay::strategies().map(played).collect(),
    })
}
