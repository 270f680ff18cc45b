//! Totals of memory with their peaks: of a device, of one class of memory on it, and of the blocks of one pool.
//!
//! All of them are atomics, so that reading them never waits. Those of a device change under the ledger's lock, because
//! one lock costs less than an atomic change of each of them.

use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::allocation::Allocation;
use base::api::Class;
use base::sync::{read, write};
use policy::Block;

/// With at most this many pools on a device, the sum of the pools is compared with the peak at every block obtained.
const POOLS_SUMMED_ALWAYS: usize = 1;
/// With more pools, that is done at one block in this many of each pool,
const SUMMING_INTERVAL: u64 = 64;
/// and at each block of more bytes than this.
const LARGE_BLOCK_BYTES: u64 = 1 << 20;

/// A number with its peak. `current` changes under the ledger's lock.
#[derive(Default)]
pub struct Gauge {
    current: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Adds `bytes`. `pooled` is what the pools hold besides, which counts towards the peak.
    pub fn add(&self, bytes: u64, pooled: u64) {
        let now = self.current.load(Relaxed).wrapping_add(bytes);
        self.current.store(now, Relaxed);
        raise(&self.peak, now.wrapping_add(pooled));
    }

    pub fn subtract(&self, bytes: u64) {
        let now = self.current.load(Relaxed).wrapping_sub(bytes);
        self.current.store(now, Relaxed);
    }

    /// `now` bytes in place of `before`.
    pub fn change(&self, before: u64, now: u64, pooled: u64) {
        self.add(now.saturating_sub(before), pooled);
        self.subtract(before.saturating_sub(now));
    }

    /// The number and its peak; `pooled` is what the pools hold besides.
    fn read(&self, pooled: u64) -> Reading {
        let current = self.current.load(Relaxed).wrapping_add(pooled);
        raise(&self.peak, current);
        let peak = self.peak.load(Relaxed);
        Reading { current, peak }
    }
}

/// A number and the most it ever was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub current: u64,
    pub peak: u64,
}

/// The totals of a device, or of one class of memory on it. Bytes, except for the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    pub requested: Reading,
    pub allocated: Reading,
    pub reserved: Reading,
    pub live: Reading,
    pub failures: u64,
}

impl Readings {
    /// Whether memory was ever asked for.
    pub fn was_used(&self) -> bool {
        self.live.peak > 0 || self.reserved.peak > 0 || self.failures > 0
    }
}

/// The sum of the live blocks of one pool. It changes under the pool's lock and is read without it. It has cache lines of
/// its own, so that pools do not slow each other down.
#[derive(Default)]
#[repr(align(128))]
pub struct Usage {
    requested: AtomicU64,
    allocated: AtomicU64,
    live: AtomicU64,
    /// Blocks obtained so far.
    obtained: AtomicU64,
}

impl Usage {
    /// A number that changes with every block obtained or returned.
    pub fn activity(&self) -> u64 {
        let (obtained, live) = (self.obtained.load(Relaxed), self.live.load(Relaxed));
        obtained.wrapping_mul(2).wrapping_sub(live)
    }

    /// The pool handed out a block. Returns the new sum and the number of blocks obtained so far.
    #[inline]
    fn obtained(&self, block: &Block) -> (Sum, u64) {
        let sum = Sum::read(self).plus(Sum {
            requested: block.requested,
            allocated: block.allocated,
            live: 1,
        });
        let obtained = self.obtained.load(Relaxed).wrapping_add(1);
        self.store(sum);
        self.obtained.store(obtained, Relaxed);
        (sum, obtained)
    }

    /// The pool took a block back; its lock is held.
    #[inline]
    pub fn returned(&self, block: &Block) {
        let sum = Sum::read(self);
        self.store(Sum {
            requested: sum.requested.wrapping_sub(block.requested),
            allocated: sum.allocated.wrapping_sub(block.allocated),
            live: sum.live.wrapping_sub(1),
        });
    }

    #[inline]
    fn store(&self, sum: Sum) {
        self.requested.store(sum.requested, Relaxed);
        self.allocated.store(sum.allocated, Relaxed);
        self.live.store(sum.live, Relaxed);
    }
}

/// The sum of the live blocks of one or several pools.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    pub requested: u64,
    pub allocated: u64,
    pub live: u64,
}

impl Sum {
    fn read(usage: &Usage) -> Sum {
        Sum {
            requested: usage.requested.load(Relaxed),
            allocated: usage.allocated.load(Relaxed),
            live: usage.live.load(Relaxed),
        }
    }

    fn plus(self, other: Sum) -> Sum {
        Sum {
            requested: self.requested.wrapping_add(other.requested),
            allocated: self.allocated.wrapping_add(other.allocated),
            live: self.live.wrapping_add(other.live),
        }
    }
}

/// What is counted of a device or of one class: memory obtained outside the pools, with peaks that include the pools.
#[derive(Default)]
pub struct Totals {
    pub requested: Gauge,
    pub allocated: Gauge,
    pub reserved: Gauge,
    live: Gauge,
    failures: AtomicU64,
}

impl Totals {
    pub fn add(&self, allocation: &Allocation, pooled: &Sum) {
        self.requested.add(allocation.requested, pooled.requested);
        self.allocated.add(allocation.allocated, pooled.allocated);
        self.reserved.add(allocation.reserved(), 0);
        self.live.add(1, pooled.live);
    }

    pub fn subtract(&self, allocation: &Allocation) {
        self.requested.subtract(allocation.requested);
        self.allocated.subtract(allocation.allocated);
        self.reserved.subtract(allocation.reserved());
        self.live.subtract(1);
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// The pools now hold this much, which may be a peak.
    #[inline]
    fn raise_peaks(&self, pooled: &Sum) {
        let raise = |gauge: &Gauge, pooled: u64| raise(&gauge.peak, gauge.current.load(Relaxed).wrapping_add(pooled));
        raise(&self.requested, pooled.requested);
        raise(&self.allocated, pooled.allocated);
        raise(&self.live, pooled.live);
    }

    fn read(&self, pooled: &Sum) -> Readings {
        Readings {
            requested: self.requested.read(pooled.requested),
            allocated: self.allocated.read(pooled.allocated),
            reserved: self.reserved.read(0),
            live: self.live.read(pooled.live),
            failures: self.failures.load(Relaxed),
        }
    }
}

/// The linear memory that was obtained from the next layer and given back, with what became of it: bytes, and pieces, which are
/// segments of policies and allocations that the next layer served.
#[derive(Default)]
pub struct Reserved(pub [Counter; 2]);

impl Reserved {
    /// The ledger's lock is held.
    pub fn obtained(&self, bytes: u64) {
        if bytes > 0 {
            self.0[0].add(bytes);
            self.0[1].add(1);
        }
    }

    /// The ledger's lock is held.
    pub fn returned(&self, bytes: u64) {
        if bytes > 0 {
            self.0[0].subtract(bytes);
            self.0[1].subtract(1);
        }
    }

    pub fn read(&self) -> [History; 2] {
        self.0.each_ref().map(Counter::read)
    }
}

/// The totals of one device, or of the host.
#[derive(Default)]
pub struct DeviceTotals {
    /// All classes together that are memory of this device; in the host's entry, memory of the host.
    all: Totals,
    classes: [Totals; Class::ALL.len()],
    /// The history of reserved linear memory, whose peak and sums a job may reset.
    pub linear: Reserved,
    usages: RwLock<Vec<&'static Usage>>,
    /// The number of entries in `usages`, readable without the lock.
    pools: AtomicUsize,
}

fn sum_of(usages: &[&'static Usage]) -> Sum {
    let sums = usages.iter().map(|usage| Sum::read(usage));
    sums.fold(Sum::default(), Sum::plus)
}

impl DeviceTotals {
    fn class(&self, class: Class) -> &Totals {
        &self.classes[usize::from(class.number()) - 1]
    }

    /// Changes the totals of a class and, if it `counts` as memory of the device, those of the device. `change` gets
    /// what the pools hold besides. The ledger's lock is held.
    pub fn change(&self, class: Class, counts: bool, change: impl Fn(&Totals, &Sum)) {
        let pooled = if counts { self.pooled() } else { Sum::default() };
        let of_class = if class == Class::Linear { pooled } else { Sum::default() };
        change(self.class(class), &of_class);
        if counts {
            change(&self.all, &pooled);
        }
    }

    /// The sum of the live blocks of this device's pools.
    pub fn pooled(&self) -> Sum {
        if self.pools.load(Relaxed) == 0 {
            return Sum::default();
        }
        sum_of(&read(&self.usages))
    }

    /// The totals of the device, or of one class on it. Blocks of pools are linear memory.
    pub fn read(&self, class: Option<Class>) -> Readings {
        let has_pools = matches!(class, None | Some(Class::Linear));
        let pooled = if has_pools { self.pooled() } else { Sum::default() };
        class.map_or(&self.all, |class| self.class(class)).read(&pooled)
    }

    /// As `read`, but never waits: `None` while a thread changes the list of pools.
    pub fn try_read(&self, class: Option<Class>) -> Option<Readings> {
        let totals = class.map_or(&self.all, |class| self.class(class));
        let pooled = match class {
            None | Some(Class::Linear) if self.pools.load(Relaxed) > 0 => sum_of(&self.usages.try_read().ok()?),
            _ => Sum::default(),
        };
        Some(totals.read(&pooled))
    }

    pub fn pool_begins(&self, usage: &'static Usage) {
        self.change_usages(|usages| usages.push(usage));
    }

    pub fn pool_ends(&self, usage: &Usage) {
        self.change_usages(|usages| usages.retain(|other| !std::ptr::eq(*other, usage)));
    }

    fn change_usages(&self, change: impl FnOnce(&mut Vec<&'static Usage>)) {
        let mut usages = write(&self.usages);
        change(&mut usages);
        self.pools.store(usages.len(), Relaxed);
    }

    /// A pool of this device handed out a block; its lock is held. With several pools, a peak of their sum may go unseen
    /// between two checks.
    #[inline(always)]
    pub fn block_obtained(&self, usage: &Usage, block: &Block) {
        let (sum, obtained) = usage.obtained(block);
        let sum = if self.pools.load(Relaxed) <= POOLS_SUMMED_ALWAYS {
            sum
        } else if obtained.is_multiple_of(SUMMING_INTERVAL) || block.allocated > LARGE_BLOCK_BYTES {
            self.pooled()
        } else {
            return;
        };
        self.class(Class::Linear).raise_peaks(&sum);
        self.all.raise_peaks(&sum);
    }
}

/// What a counter says: the number now, its peak, and the sums of all increases and decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub current: u64,
    pub peak: u64,
    pub added: u64,
    pub removed: u64,
}

/// A count with its history, as PyTorch reports its statistics: a sum of increases and one of decreases, with the peak of
/// their difference. One thread at a time changes a counter.
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
