//! What was counted for the whole node, and of which processes, so that nothing is counted twice.

use std::collections::BTreeMap;

use base::named;

use super::followed_process::{Identity, Process};
use crate::analysis::figures::Counts;

/// The most processes that are remembered.
const MOST: usize = 1 << 16;

named! {
    /// How processes ended.
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
    /// By `Ended`.
    pub ended: [u64; 3],
}

/// The processes whose journals are not followed any more. A journal can come back, for example with its file system.
#[derive(Default)]
pub struct Counted(BTreeMap<Identity, Before>);

/// What was counted of a process before.
#[derive(Clone, Copy)]
pub struct Before {
    /// Nanoseconds after 1970.
    pub until_ns: u64,
    pub lost: u64,
    pub has_ended: bool,
}

impl Counted {
    pub fn before(&self, identity: &Identity) -> Option<Before> {
        self.0.get(identity).copied()
    }

    /// Remembers a process that is not followed any more.
    pub fn note(&mut self, process: &Process) {
        let before = Before {
            until_ns: process.counted_until_ns,
            lost: process.lost,
            has_ended: process.is_done,
        };
        self.0.insert(process.identity.clone(), before);
        if self.0.len() > MOST {
            self.0.pop_first();
        }
    }
}
