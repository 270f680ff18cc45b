//! Collects the requests of RMM's log.

use std::path::Path;

use super::gathering::{Gathering, Unplayed};
use super::requests::{LastUse, Way};
use crate::import::rmm_log::{Action, End, read};

/// Collects the requests of a log. If the log was cut short, the complete lines are kept and a note says so.
pub(super) fn gather(path: &Path, gathering: &mut Gathering) -> Result<(), Unplayed> {
    let end = read(path, &mut |row| {
        if let Some(now_ns) = row.at_ns {
            gathering.at(now_ns);
        }
        match row.action {
            Action::Allocate { pointer, size, stream } => gathering.allocate(pointer, size, Way::Tensor(Some(stream))),
            Action::Free { pointer, stream } => gathering.free(pointer, |way| match (way, stream) {
                (Way::Tensor(Some(own)), Some(freed_on)) if own != freed_on => LastUse::TwoStreams(own, freed_on),
                _ => way.used_alone(),
            }),
            Action::Failure { size, stream } => gathering.fail(size, Way::Tensor(stream)),
        }
    })?;
    if let End::Cut(problem) = end {
        if gathering.trace.requests.is_empty() {
            return Err(problem.into());
        }
        gathering
            .trace
            .notes
            .push(format!("{problem}; what comes before is played"));
    }
    Ok(())
}
