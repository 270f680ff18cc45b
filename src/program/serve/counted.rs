//! What was counted for the whole node, and of which processes, so that nothing is counted twice.

use base::named;

use crate::analysis::figures::Counts;

named! {
    pub enum Ended {
        /// With status 0.
        Exited => "exited",
        /// With another status.
        Failed => "failed",
        Killed => "killed",
    }
}

/// What happened on the node since this program began. These sums never fall, whatever process ends.
#[derive(Default)]
pub struct Totals {
    pub counts: Counts,
    pub lost: u64,
    pub ended: [u64; 3],
}

/// What was counted of a process whose journal is not followed any more. The journal can come back, for example with its
/// file system.
#[derive(Clone, Copy)]
pub struct Before {
    /// Nanoseconds after 1970.
    pub until_ns: u64,
    pub lost: u64,
    pub has_ended: bool,
}
