//! Requests for idle memory between the processes of an account, as text.

use super::format::{size, times};
use crate::analysis::device_ledger::Reclaims;

/// One line; `None` if there were no such requests.
pub fn text(reclaims: &Reclaims) -> Option<String> {
    let asked = (reclaims.asked > 0).then(|| {
        format!(
            "asked others for memory {}, who gave back {}",
            times(reclaims.asked),
            size(reclaims.from_others)
        )
    });
    let given = (reclaims.given > 0).then(|| {
        format!(
            "gave memory back for others {}, {}",
            times(reclaims.given),
            size(reclaims.for_others)
        )
    });
    let parts: Vec<String> = asked.into_iter().chain(given).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
