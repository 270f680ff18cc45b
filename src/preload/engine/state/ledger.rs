//! The ledger: every live allocation, and the totals made from them. The single truth that every answer is made from.
//!
//! Totals are atomics, so that reading them never waits. `dashmap` holds the allocations; no guard of it is ever kept
//! across a call out of this file. Blocks that a policy cut from its segments are listed by the policy alone, so that
//! no request looks its block up twice; what they add up to is known here as their pool's `Usage`.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use dashmap::DashMap;

use base::api::Class;
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use policy::Block;

/// What names an allocation. Pointers of all kinds share one address space (unified addressing); handles do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Device or host address.
    Address(u64),
    /// Host memory that was registered, not allocated: the same address may be an allocation as well.
    Registered(u64),
    /// Reserved address space.
    Range(u64),
    /// Physical memory (`CUmemGenericAllocationHandle`).
    Physical(u64),
    /// Array, mipmapped array, imported external memory.
    Object(u64),
}

impl Key {
    pub fn value(self) -> u64 {
        match self {
            Key::Address(v) | Key::Registered(v) | Key::Range(v) | Key::Physical(v) | Key::Object(v) => v,
        }
    }
}

/// One live allocation. Sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub class: Class,
    /// Device ordinal, or `HOST_DEVICE`.
    pub device: i16,
    /// The context it dies with; 0 for memory that belongs to no context.
    pub context: u64,
    pub requested: u64,
    pub allocated: u64,
    /// Bytes this very allocation took from the layer below; 0 where it lies in a segment or a driver's pool.
    pub reserved: u64,
}

/// A number with its peak.
#[derive(Default)]
pub struct Gauge {
    current: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// `pooled`: what pools have of the same.
    fn add(&self, bytes: u64, pooled: u64) {
        let now = self.current.fetch_add(bytes, Relaxed).wrapping_add(bytes);
        self.reached(now.wrapping_add(pooled));
    }

    #[inline]
    fn reached(&self, now: u64) {
        if now > self.peak.load(Relaxed) {
            self.peak.fetch_max(now, Relaxed);
        }
    }

    fn subtract(&self, bytes: u64) {
        self.current.fetch_sub(bytes, Relaxed);
    }
}

/// What the live blocks of one pool add up to. Changed by whoever holds the pool's lock, read by anybody. On cache lines
/// of its own: pools at work must not slow each other down.
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
    /// Changes with every block obtained or returned.
    pub fn activity(&self) -> u64 {
        let (obtained, live) = (self.obtained.load(Relaxed), self.live.load(Relaxed));
        obtained.wrapping_mul(2).wrapping_sub(live)
    }
}

/// Pools whose sum is looked at with every block; where there are more, with every `SAMPLE`th.
const SUMMED_ALWAYS: usize = 1;
const SAMPLE: u64 = 64;
/// And at each block of more bytes than this.
const LARGE: u64 = 1 << 20;

#[derive(Default)]
pub struct Totals {
    requested: Gauge,
    allocated: Gauge,
    reserved: Gauge,
    live: Gauge,
    failures: AtomicU64,
}

impl Totals {
    fn add(&self, allocation: &Allocation, pooled: &Sum) {
        self.requested.add(allocation.requested, pooled.requested);
        self.allocated.add(allocation.allocated, pooled.allocated);
        self.reserved.add(allocation.reserved, 0);
        self.live.add(1, pooled.live);
    }

    fn subtract(&self, allocation: &Allocation) {
        self.requested.subtract(allocation.requested);
        self.allocated.subtract(allocation.allocated);
        self.reserved.subtract(allocation.reserved);
        self.live.subtract(1);
    }

    /// Pools now have this much: it may be a peak.
    #[inline]
    fn reached(&self, pooled: &Sum) {
        let all = |gauge: &Gauge, pooled: u64| gauge.reached(gauge.current.load(Relaxed).wrapping_add(pooled));
        all(&self.requested, pooled.requested);
        all(&self.allocated, pooled.allocated);
        all(&self.live, pooled.live);
    }
}

/// What pools have together.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    requested: u64,
    allocated: u64,
    live: u64,
}

impl Sum {
    fn of(usage: &Usage) -> Sum {
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

/// A number and the most it ever was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub current: u64,
    pub peak: u64,
}

/// What is known of a device or of one class of memory on it. Bytes, but for the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    pub requested: Reading,
    pub allocated: Reading,
    pub reserved: Reading,
    pub live: Reading,
    pub failures: u64,
}

#[derive(Default)]
struct DeviceTotals {
    /// All classes that are memory of this device (of the host, in the host's entry) together.
    all: Totals,
    classes: [Totals; Class::ALL.len()],
    usages: RwLock<Vec<&'static Usage>>,
    pools: AtomicUsize,
}

impl DeviceTotals {
    fn class(&self, class: Class) -> &Totals {
        &self.classes[usize::from(class.number()) - 1]
    }

    /// What the pools of this device have.
    fn pooled(&self) -> Sum {
        if self.pools.load(Relaxed) == 0 {
            return Sum::default();
        }
        let usages = self.usages.read().unwrap_or_else(PoisonError::into_inner);
        usages
            .iter()
            .map(|usage| Sum::of(usage))
            .fold(Sum::default(), Sum::plus)
    }
}

/// Device addresses and handles are already well spread above their alignment: one multiplication mixes them.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

pub struct Ledger {
    live: DashMap<Key, Allocation, BuildHasherDefault<AddressHasher>>,
    /// One entry a device, and the last one for the host.
    devices: Box<[DeviceTotals]>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            live: DashMap::with_hasher_and_shard_amount(BuildHasherDefault::default(), 64),
            devices: (0..=MAX_DEVICES).map(|_| DeviceTotals::default()).collect(),
        }
    }
}

impl Ledger {
    /// What is known of a device, of one class where that is named.
    pub fn readings(&self, device: i16, class: Option<Class>) -> Readings {
        let device = self.device(device);
        let totals = class.map_or(&device.all, |class| device.class(class));
        let pooled = match class {
            None | Some(Class::Linear) => device.pooled(),
            Some(_) => Sum::default(),
        };
        let read = |gauge: &Gauge, pooled: u64| {
            let current = gauge.current.load(Relaxed).wrapping_add(pooled);
            gauge.reached(current);
            let peak = gauge.peak.load(Relaxed);
            Reading { current, peak }
        };
        Readings {
            requested: read(&totals.requested, pooled.requested),
            allocated: read(&totals.allocated, pooled.allocated),
            reserved: read(&totals.reserved, 0),
            live: read(&totals.live, pooled.live),
            failures: totals.failures.load(Relaxed),
        }
    }

    /// Totals of a device; those of the host for `HOST_DEVICE` and for a number past the last device.
    fn device(&self, device: i16) -> &DeviceTotals {
        let last = self.devices.len() - 1;
        let index = if device == HOST_DEVICE {
            last
        } else {
            usize::try_from(device).unwrap_or(last).min(last)
        };
        &self.devices[index]
    }

    fn each_total(&self, device: i16, class: Class, change: impl Fn(&Totals, &Sum)) {
        let totals = self.device(device);
        let counts = if device == HOST_DEVICE {
            !matches!(class, Class::Imported | Class::AddressRange)
        } else {
            class.is_device_memory()
        };
        let pooled = if counts { totals.pooled() } else { Sum::default() };
        let of_class = if class == Class::Linear { pooled } else { Sum::default() };
        change(totals.class(class), &of_class);
        if counts {
            change(&totals.all, &pooled);
        }
    }

    pub fn pool_begins(&self, device: i16, usage: &'static Usage) {
        let totals = self.device(device);
        let mut usages = totals.usages.write().unwrap_or_else(PoisonError::into_inner);
        usages.push(usage);
        totals.pools.store(usages.len(), Relaxed);
    }

    pub fn pool_ends(&self, device: i16, usage: &Usage) {
        let totals = self.device(device);
        let mut usages = totals.usages.write().unwrap_or_else(PoisonError::into_inner);
        usages.retain(|other| !std::ptr::eq(*other, usage));
        totals.pools.store(usages.len(), Relaxed);
    }

    /// A pool handed a block out; its lock is held. With several pools on a device a peak of their sum may go unseen
    /// between two looks at it.
    #[inline]
    pub fn block_obtained(&self, device: i16, usage: &Usage, block: &Block) {
        let sum = Sum::of(usage).plus(Sum {
            requested: block.requested,
            allocated: block.allocated,
            live: 1,
        });
        usage.requested.store(sum.requested, Relaxed);
        usage.allocated.store(sum.allocated, Relaxed);
        usage.live.store(sum.live, Relaxed);
        let obtained = usage.obtained.load(Relaxed).wrapping_add(1);
        usage.obtained.store(obtained, Relaxed);
        let totals = self.device(device);
        let sum = if totals.pools.load(Relaxed) <= SUMMED_ALWAYS {
            sum
        } else if obtained.is_multiple_of(SAMPLE) || block.allocated > LARGE {
            totals.pooled()
        } else {
            return;
        };
        totals.class(Class::Linear).reached(&sum);
        totals.all.reached(&sum);
    }

    /// A pool took a block back; its lock is held.
    #[inline]
    pub fn block_returned(&self, usage: &Usage, block: &Block) {
        let sum = Sum::of(usage);
        usage
            .requested
            .store(sum.requested.wrapping_sub(block.requested), Relaxed);
        usage
            .allocated
            .store(sum.allocated.wrapping_sub(block.allocated), Relaxed);
        usage.live.store(sum.live.wrapping_sub(1), Relaxed);
    }

    /// Returns the allocation that had this name before, if there was one: the driver gave the name out again, so it is
    /// gone, whoever freed it.
    pub fn insert(&self, key: Key, allocation: Allocation) -> Option<Allocation> {
        self.each_total(allocation.device, allocation.class, |totals, pooled| {
            totals.add(&allocation, pooled)
        });
        let stale = self.live.insert(key, allocation)?;
        self.each_total(stale.device, stale.class, |totals, _| totals.subtract(&stale));
        Some(stale)
    }

    pub fn remove(&self, key: Key) -> Option<Allocation> {
        let (_, allocation) = self.live.remove(&key)?;
        self.each_total(allocation.device, allocation.class, |totals, _| {
            totals.subtract(&allocation)
        });
        Some(allocation)
    }

    pub fn get(&self, key: Key) -> Option<Allocation> {
        self.live.get(&key).map(|entry| *entry)
    }

    /// Live allocations that `chosen` picks; a copy, so that the caller may change the ledger.
    pub fn select(&self, chosen: impl Fn(&Key, &Allocation) -> bool) -> Vec<(Key, Allocation)> {
        self.live
            .iter()
            .filter(|entry| chosen(entry.key(), entry))
            .map(|entry| (*entry.key(), *entry))
            .collect()
    }

    /// A policy obtained a segment of `bytes` from the layer below.
    pub fn segment_obtained(&self, device: i16, bytes: u64) {
        self.each_total(device, Class::Linear, |totals, _| totals.reserved.add(bytes, 0));
    }

    pub fn segment_returned(&self, device: i16, bytes: u64) {
        self.each_total(device, Class::Linear, |totals, _| totals.reserved.subtract(bytes));
    }

    /// The driver's own pools now hold `now` bytes where they held `before`.
    pub fn pool_reserved(&self, device: i16, class: Class, before: u64, now: u64) {
        self.each_total(device, class, |totals, _| {
            totals.reserved.add(now.saturating_sub(before), 0);
            totals.reserved.subtract(before.saturating_sub(now));
        });
    }

    /// Launched graphs now use `now` bytes of graph memory where they used `before`.
    pub fn graph_used(&self, device: i16, before: u64, now: u64) {
        self.each_total(device, Class::Graph, |totals, pooled| {
            let gauges = [
                (&totals.requested, pooled.requested),
                (&totals.allocated, pooled.allocated),
            ];
            for (gauge, pooled) in gauges {
                gauge.add(now.saturating_sub(before), pooled);
                gauge.subtract(before.saturating_sub(now));
            }
        });
    }

    pub fn failed(&self, device: i16, class: Class) {
        self.each_total(device, class, |totals, _| {
            totals.failures.fetch_add(1, Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(class: Class, device: i16, bytes: u64) -> Allocation {
        Allocation {
            class,
            device,
            context: 1,
            requested: bytes,
            allocated: bytes,
            reserved: bytes,
        }
    }

    #[test]
    fn totals_follow_the_live_set_and_keep_peaks() {
        let ledger = Ledger::default();
        ledger.insert(Key::Address(0x1000), allocation(Class::Linear, 0, 100));
        ledger.insert(Key::Address(0x2000), allocation(Class::Managed, 0, 50));
        ledger.insert(Key::Address(0x3000), allocation(Class::Linear, 1, 7));
        assert_eq!(ledger.readings(0, None).requested.current, 150);
        assert_eq!(ledger.readings(1, None).requested.current, 7);
        assert!(ledger.remove(Key::Address(0x1000)).is_some());
        assert!(ledger.remove(Key::Address(0x1000)).is_none());
        assert_eq!(ledger.readings(0, None).reserved, Reading { current: 50, peak: 150 });
    }

    #[test]
    fn host_and_imported_memory_stay_out_of_a_devices_total() {
        let ledger = Ledger::default();
        ledger.insert(Key::Address(0x1000), allocation(Class::Imported, 0, 100));
        ledger.insert(Key::Address(0x2000), allocation(Class::Host, HOST_DEVICE, 5));
        assert_eq!(ledger.readings(0, None).requested.current, 0);
        assert_eq!(ledger.readings(HOST_DEVICE, None).requested.current, 5);
    }

    #[test]
    fn a_name_given_out_again_replaces_the_stale_entry() {
        let ledger = Ledger::default();
        ledger.insert(Key::Address(0x1000), allocation(Class::Linear, 0, 100));
        ledger.insert(Key::Address(0x1000), allocation(Class::Linear, 0, 30));
        assert_eq!(ledger.readings(0, None).requested.current, 30);
    }

    #[test]
    fn blocks_of_a_pool_count_with_what_was_allocated_directly() {
        static USAGE: Usage = Usage {
            requested: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            live: AtomicU64::new(0),
            obtained: AtomicU64::new(0),
        };
        let ledger = Ledger::default();
        ledger.pool_begins(0, &USAGE);
        let block = Block {
            address: 0x9000,
            requested: 30,
            allocated: 512,
        };
        ledger.block_obtained(0, &USAGE, &block);
        ledger.insert(Key::Address(0x1000), allocation(Class::Managed, 0, 100));
        let all = ledger.readings(0, None);
        assert_eq!(
            (all.requested.current, all.allocated.current, all.live.current),
            (130, 612, 2)
        );
        assert_eq!(ledger.readings(0, Some(Class::Linear)).allocated.current, 512);
        ledger.block_returned(&USAGE, &block);
        assert_eq!(
            ledger.readings(0, None).requested,
            Reading {
                current: 100,
                peak: 130
            }
        );
    }
}
