//! The ledger: every live allocation, and the totals that the library answers from.
//!
//! `dashmap` holds the allocations. No guard of it is kept across a call out of this file. A block of a pool is listed by
//! its policy alone, so that no request looks its block up twice. The ledger knows the sum of a pool's blocks, `Usage`.

use std::hash::{BuildHasherDefault, Hasher};

use dashmap::DashMap;

use super::allocation::{Allocation, Key};
use super::totals::{DeviceTotals, Readings, Reserved, Sum, Totals, Usage};
use base::api::Class;
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use policy::Block;

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
    /// One entry for each device, and the last one for the host.
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
    /// The totals of a device, or of one class of memory on it.
    pub fn readings(&self, device: i16, class: Option<Class>) -> Readings {
        self.device(device).read(class)
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

    /// The history of a device's reserved linear memory.
    pub fn linear(&self, device: i16) -> &Reserved {
        &self.device(device).linear
    }

    /// Changes the totals of a class and, if the class is memory of the device, those of the device.
    fn change(&self, device: i16, class: Class, change: impl Fn(&Totals, &Sum)) {
        let totals = self.device(device);
        let counts = if device == HOST_DEVICE {
            !matches!(class, Class::Imported | Class::AddressRange)
        } else {
            class.is_device_memory()
        };
        totals.change(class, counts, change);
    }

    pub fn pool_begins(&self, device: i16, usage: &'static Usage) {
        self.device(device).pool_begins(usage);
    }

    pub fn pool_ends(&self, device: i16, usage: &Usage) {
        self.device(device).pool_ends(usage);
    }

    /// A pool handed out a block; its lock is held.
    #[inline]
    pub fn block_obtained(&self, device: i16, usage: &Usage, block: &Block) {
        self.device(device).block_obtained(usage, block);
    }

    /// Returns the allocation that had this key before, if there was one. The driver gave the name out again, so the old
    /// allocation is gone.
    pub fn insert(&self, key: Key, allocation: Allocation) -> Option<Allocation> {
        if allocation.class == Class::Linear {
            self.linear(allocation.device).obtained(allocation.reserved);
        }
        self.change(allocation.device, allocation.class, |totals, pooled| {
            totals.add(&allocation, pooled)
        });
        let stale = self.live.insert(key, allocation)?;
        self.gone(&stale);
        Some(stale)
    }

    pub fn remove(&self, key: Key) -> Option<Allocation> {
        let (_, allocation) = self.live.remove(&key)?;
        self.gone(&allocation);
        Some(allocation)
    }

    fn gone(&self, allocation: &Allocation) {
        if allocation.class == Class::Linear {
            self.linear(allocation.device).returned(allocation.reserved);
        }
        self.change(allocation.device, allocation.class, |totals, _| {
            totals.subtract(allocation)
        });
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

    /// A policy obtained a segment of `bytes` from the next layer.
    pub fn segment_obtained(&self, device: i16, bytes: u64) {
        self.linear(device).obtained(bytes);
        self.change(device, Class::Linear, |totals, _| totals.reserved.add(bytes, 0));
    }

    pub fn segment_returned(&self, device: i16, bytes: u64) {
        self.linear(device).returned(bytes);
        self.change(device, Class::Linear, |totals, _| totals.reserved.subtract(bytes));
    }

    /// The driver's own pools now hold `now` bytes; they held `before`.
    pub fn driver_pools_hold(&self, device: i16, class: Class, before: u64, now: u64) {
        self.change(device, class, |totals, _| {
            totals.reserved.add(now.saturating_sub(before), 0);
            totals.reserved.subtract(before.saturating_sub(now));
        });
    }

    /// Launched graphs now use `now` bytes of graph memory; they used `before`.
    pub fn graphs_use(&self, device: i16, before: u64, now: u64) {
        self.change(device, Class::Graph, |totals, pooled| {
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
        self.change(device, class, |totals, _| totals.failed());
    }
}

#[cfg(test)]
mod tests {
    use super::super::totals::Reading;
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
        let usage: &'static Usage = Box::leak(Box::default());
        let ledger = Ledger::default();
        ledger.pool_begins(0, usage);
        let block = Block {
            address: 0x9000,
            requested: 30,
            allocated: 512,
        };
        ledger.block_obtained(0, usage, &block);
        ledger.insert(Key::Address(0x1000), allocation(Class::Managed, 0, 100));
        let all = ledger.readings(0, None);
        assert_eq!(
            (all.requested.current, all.allocated.current, all.live.current),
            (130, 612, 2)
        );
        assert_eq!(ledger.readings(0, Some(Class::Linear)).allocated.current, 512);
        usage.returned(&block);
        assert_eq!(
            ledger.readings(0, None).requested,
            Reading {
                current: 100,
                peak: 130
            }
        );
    }
}
