//! How long allocations live, and how often an address is used again.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use journal::format::{Event, Record};

use super::job::Observer;
use super::ledger::Ledger;

/// The classes of lifetimes: shorter than each of these, in nanoseconds; the last class is longer.
pub const LIMITS_NS: [u64; 7] = [
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];
/// The number of different addresses, and of different sizes, that are told apart.
const MOST_KEYS: usize = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    /// Requested bytes.
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Allocations of one size and stack that were freed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Churn {
    pub sum: Sum,
    /// The sum of their lifetimes, in nanoseconds.
    pub lived_ns: u64,
}

#[derive(Default)]
pub struct Lifetimes {
    /// Freed allocations by the class of their lifetime.
    pub freed: [Sum; LIMITS_NS.len() + 1],
    /// Allocations at an address where an earlier one began.
    pub reused: Sum,
    pub all: Sum,
    /// Freed allocations by size and stack.
    pub churn: HashMap<(u64, u32), Churn, RandomState>,
    addresses: HashSet<u64, RandomState>,
    /// Some addresses or sizes were not told apart.
    pub incomplete: bool,
}

impl Lifetimes {
    /// The number of different addresses at which allocations began.
    pub fn addresses(&self) -> usize {
        self.addresses.len()
    }
}

impl Observer for Lifetimes {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        if let Event::Alloc(allocation) = record.event {
            self.all.add(allocation.requested);
            if self.addresses.contains(&allocation.address) {
                self.reused.add(allocation.requested);
            } else if self.addresses.len() < MOST_KEYS {
                self.addresses.insert(allocation.address);
            } else {
                self.incomplete = true;
            }
        }
        let (Some(gone), Event::Free { .. }) = (ledger.gone(), record.event) else {
            return;
        };
        let lived_ns = record.time_ns.saturating_sub(gone.time_ns);
        let class = LIMITS_NS.iter().position(|&limit| lived_ns < limit);
        self.freed[class.unwrap_or(LIMITS_NS.len())].add(gone.size);
        let full = self.churn.len() >= MOST_KEYS;
        match self.churn.get_mut(&(gone.size, gone.stack)) {
            Some(churn) => churn.add(gone.size, lived_ns),
            None if full => self.incomplete = true,
            None => self
                .churn
                .entry((gone.size, gone.stack))
                .or_default()
                .add(gone.size, lived_ns),
        }
    }
}

impl Churn {
    fn add(&mut self, bytes: u64, lived_ns: u64) {
        self.sum.add(bytes);
        self.lived_ns = self.lived_ns.saturating_add(lived_ns);
    }
}
