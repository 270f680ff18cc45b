//! The ledger: every live allocation, and the totals made from them. The single truth that every answer is made from.
//!
//! Totals are atomics, so that reading them never waits. `dashmap` holds the allocations; no guard of it is ever kept
//! across a call out of this file.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dashmap::DashMap;

use crate::api::Class;
use crate::journal::format::{HOST_DEVICE, MAX_DEVICES};

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
    /// Whether a policy's segment holds it.
    pub pooled: bool,
}

/// A number with its peak.
#[derive(Default)]
pub struct Gauge {
    current: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    fn add(&self, bytes: u64) {
        let now = self.current.fetch_add(bytes, Relaxed).wrapping_add(bytes);
        if now > self.peak.load(Relaxed) {
            self.peak.fetch_max(now, Relaxed);
        }
    }

    fn subtract(&self, bytes: u64) {
        self.current.fetch_sub(bytes, Relaxed);
    }

    pub fn current(&self) -> u64 {
        self.current.load(Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }
}

#[derive(Default)]
pub struct Totals {
    pub requested: Gauge,
    pub allocated: Gauge,
    pub reserved: Gauge,
    pub live: Gauge,
    pub failures: AtomicU64,
}

impl Totals {
    fn add(&self, allocation: &Allocation) {
        self.requested.add(allocation.requested);
        self.allocated.add(allocation.allocated);
        self.reserved.add(allocation.reserved);
        self.live.add(1);
    }

    fn subtract(&self, allocation: &Allocation) {
        self.requested.subtract(allocation.requested);
        self.allocated.subtract(allocation.allocated);
        self.reserved.subtract(allocation.reserved);
        self.live.subtract(1);
    }
}

#[derive(Default)]
pub struct DeviceTotals {
    /// All classes that are memory of this device (of the host, in the host's entry) together.
    pub all: Totals,
    pub classes: [Totals; Class::ALL.len()],
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
    /// Totals of a device; those of the host for `HOST_DEVICE` and for a number past the last device.
    pub fn device(&self, device: i16) -> &DeviceTotals {
        let last = self.devices.len() - 1;
        let index = if device == HOST_DEVICE {
            last
        } else {
            usize::try_from(device).unwrap_or(last).min(last)
        };
        &self.devices[index]
    }

    fn each_total(&self, device: i16, class: Class, change: impl Fn(&Totals)) {
        let totals = self.device(device);
        change(&totals.classes[usize::from(class.number()) - 1]);
        let counts = if device == HOST_DEVICE {
            !matches!(class, Class::Imported | Class::AddressRange)
        } else {
            class.is_device_memory()
        };
        if counts {
            change(&totals.all);
        }
    }

    pub fn insert(&self, key: Key, allocation: Allocation) {
        self.each_total(allocation.device, allocation.class, |totals| totals.add(&allocation));
        if let Some(stale) = self.live.insert(key, allocation) {
            // The driver gave the same name out again, so the old allocation is gone, whoever freed it.
            self.each_total(stale.device, stale.class, |totals| totals.subtract(&stale));
        }
    }

    pub fn remove(&self, key: Key) -> Option<Allocation> {
        let (_, allocation) = self.live.remove(&key)?;
        self.each_total(allocation.device, allocation.class, |totals| {
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
        self.each_total(device, Class::Linear, |totals| totals.reserved.add(bytes));
    }

    pub fn segment_returned(&self, device: i16, bytes: u64) {
        self.each_total(device, Class::Linear, |totals| totals.reserved.subtract(bytes));
    }

    /// The driver's own pools now hold `now` bytes where they held `before`.
    pub fn pool_reserved(&self, device: i16, class: Class, before: u64, now: u64) {
        self.each_total(device, class, |totals| {
            totals.reserved.add(now.saturating_sub(before));
            totals.reserved.subtract(before.saturating_sub(now));
        });
    }

    /// Launched graphs now use `now` bytes of graph memory where they used `before`.
    pub fn graph_used(&self, device: i16, before: u64, now: u64) {
        self.each_total(device, Class::Graph, |totals| {
            for gauge in [&totals.requested, &totals.allocated] {
                gauge.add(now.saturating_sub(before));
                gauge.subtract(before.saturating_sub(now));
            }
        });
    }

    pub fn failed(&self, device: i16, class: Class) {
        self.each_total(device, class, |totals| {
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
            pooled: false,
        }
    }

    #[test]
    fn totals_follow_the_live_set_and_keep_peaks() {
        let ledger = Ledger::default();
        ledger.insert(Key::Address(0x1000), allocation(Class::Linear, 0, 100));
        ledger.insert(Key::Address(0x2000), allocation(Class::Managed, 0, 50));
        ledger.insert(Key::Address(0x3000), allocation(Class::Linear, 1, 7));
        assert_eq!(ledger.device(0).all.requested.current(), 150);
        assert_eq!(ledger.device(1).all.requested.current(), 7);
        assert!(ledger.remove(Key::Address(0x1000)).is_some());
        assert!(ledger.remove(Key::Address(0x1000)).is_none());
        assert_eq!(
            (
                ledger.device(0).all.reserved.current(),
                ledger.device(0).all.reserved.peak()
            ),
            (50, 150)
        );
    }

    #[test]
    fn host_and_imported_memory_stay_out_of_a_devices_total() {
        let ledger = Ledger::default();
        ledger.insert(Key::Address(0x1000), allocation(Class::Imported, 0, 100));
        ledger.insert(Key::Address(0x2000), allocation(Class::Host, HOST_DEVICE, 5));
        assert_eq!(ledger.device(0).all.requested.current(), 0);
        assert_eq!(ledger.device(HOST_DEVICE).all.requested.current(), 5);
    }

    #[test]
    fn a_name_given_out_again_replaces_the_stale_entry() {
        let ledger = Ledger::default();
        ledger.insert(Key::Address(0x1000), allocation(Class::Linear, 0, 100));
        ledger.insert(Key::Address(0x1000), allocation(Class::Linear, 0, 30));
        assert_eq!(ledger.device(0).all.requested.current(), 30);
    }
}
