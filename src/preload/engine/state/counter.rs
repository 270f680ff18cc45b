//! A count with its history, as PyTorch reports its statistics. Atomics, so that reading never waits. One thread at a
//! time changes a counter, because one lock costs less than an atomic change of each counter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a counter says: the number now, its peak, and the sums of all increases and decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub current: u64,
    pub peak: u64,
    pub added: u64,
    pub removed: u64,
}

/// A sum of increases and one of decreases, with the peak of their difference.
#[derive(Default)]
pub struct Counter {
    added: AtomicU64,
    removed: AtomicU64,
    peak: AtomicU64,
    /// What the sums were at the last `reset_sums`.
    added_before: AtomicU64,
    removed_before: AtomicU64,
}

/// Sets `peak` to `now` if that is more.
#[inline]
pub fn raise(peak: &AtomicU64, now: u64) {
    if now > peak.load(Relaxed) {
        raise_to(peak, now);
    }
}

#[cold]
#[inline(never)]
fn raise_to(peak: &AtomicU64, now: u64) {
    peak.fetch_max(now, Relaxed);
}

impl Counter {
    #[inline]
    pub fn current(&self) -> u64 {
        // Decreases are read first: each has its increase before it.
        let removed = self.removed.load(Relaxed);
        self.added.load(Relaxed).saturating_sub(removed)
    }

    /// Returns what the counter is then.
    #[inline]
    pub fn add(&self, amount: u64) -> u64 {
        let added = self.added.load(Relaxed) + amount;
        self.added.store(added, Relaxed);
        let now = added.saturating_sub(self.removed.load(Relaxed));
        raise(&self.peak, now);
        now
    }

    #[inline]
    pub fn subtract(&self, amount: u64) {
        self.removed.store(self.removed.load(Relaxed) + amount, Relaxed);
    }

    pub fn read(&self) -> History {
        History {
            current: self.current(),
            peak: self.peak.load(Relaxed),
            added: self.added.load(Relaxed) - self.added_before.load(Relaxed),
            removed: self.removed.load(Relaxed) - self.removed_before.load(Relaxed),
        }
    }

    /// Begins the peak anew.
    pub fn reset_peak(&self) {
        self.peak.store(self.current(), Relaxed);
    }

    /// Begins the sums anew.
    pub fn reset_sums(&self) {
        self.added_before.store(self.added.load(Relaxed), Relaxed);
        self.removed_before.store(self.removed.load(Relaxed), Relaxed);
    }
}
