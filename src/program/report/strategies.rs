//! What each strategy would have needed, as the page of `report` shows it.

use super::data::{Played, Replay};
use crate::replay::{self, Setup, Trace, play};

/// Plays the requests of a device. `None` if they are the segments of PyTorch's cache, which say little of what its tensors
/// need, or if the size of the device is not known.
pub fn played(trace: &Trace, device: i16) -> Option<Replay> {
    if trace.not_known("torch").is_some() {
        return None;
    }
    let setup = Setup::once(trace.settings(), trace.device_memory?);
    let played = |name| {
        let outcome = play(trace, name, &setup);
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
