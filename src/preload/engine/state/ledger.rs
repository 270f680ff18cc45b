//! The ledger: every live allocation, and the totals that the library answers from.
//!
//! One lock guards the table of allocations and every change of the totals: two locks would cost a call more than they
//! could spare threads. No guard of it is kept across a call out of this file. A block of a pool is listed by its
//! policy alone, so that no request looks its block up twice. The ledger knows the sum of a pool's blocks, `Usage`.

use std::time::Duration;

use super::allocation::{Allocation, Key};
use super::book::{Book, Expected};
use super::frees_in_flight::{Begun, FreesInFlight, Places};
use super::totals::{DeviceTotals, Readings, Sum, Totals};
use base::api::Class;
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use base::sync::BriefMutex;

/// How long a thread sleeps that wants to free what another thread is freeing.
const RETRY_INTERVAL: Duration = Duration::from_micros(100);

pub struct Ledger {
    live: BriefMutex<Live>,
    frees: Places,
    expected: Expected,
    /// One entry for each device, and the last one for the host.
    devices: Box<[DeviceTotals]>,
}

#[derive(Default)]
struct Live {
    book: Book,
    frees: FreesInFlight,
}

/// The free of one allocation; dropping it ends the free.
pub struct Free<'a> {
    ledger: &'a Ledger,
    key: Key,
    begun: Begun<'a>,
    /// The allocation, which is off the books now.
    pub taken: Option<Allocation>,
}

impl Drop for Free<'_> {
    fn drop(&mut self) {
        match self.begun {
            Begun::At(place) => place.leave(),
            Begun::WithoutPlace => self.ledger.live.lock().frees.end_without_place(self.key),
        }
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            live: BriefMutex::default(),
            frees: Places::default(),
            expected: Expected::default(),
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
    #[inline]
    pub fn device(&self, device: i16) -> &DeviceTotals {
        &self.devices[(device as usize).min(MAX_DEVICES)]
    }

    /// Changes the totals of a class and, if the class is memory of the device, those of the device.
    fn change(&self, device: i16, class: Class, change: impl Fn(&Totals, &Sum)) {
        let _live = self.live.lock();
        self.change_locked(device, class, change);
    }

    /// As `change`, with the ledger's lock held.
    fn change_locked(&self, device: i16, class: Class, change: impl Fn(&Totals, &Sum)) {
        let totals = self.device(device);
        let counts = if device == HOST_DEVICE {
            !matches!(class, Class::Imported | Class::AddressRange)
        } else {
            class.is_device_memory()
        };
        totals.change(class, counts, change);
    }

    /// The entry of this key will soon be entered, asked for or taken out.
    #[inline]
    pub fn expect(&self, key: Key) {
        self.expected.prefetch(key);
    }

    /// Returns the allocation that had this key before, if there was one. The driver gave the name out again, so the old
    /// allocation is gone.
    pub fn insert(&self, key: Key, allocation: Allocation) -> Option<Allocation> {
        let mut live = self.live.lock();
        if allocation.class == Class::Linear {
            self.device(allocation.device).linear.obtained(allocation.reserved());
        }
        self.change_locked(allocation.device, allocation.class, |totals, pooled| {
            totals.add(&allocation, pooled)
        });
        let stale = live.book.insert(key, allocation);
        self.expected.follow(&live.book);
        let stale = stale?;
        self.gone(&stale);
        Some(stale)
    }

    pub fn remove(&self, key: Key) -> Option<Allocation> {
        self.take(&mut self.live.lock(), key)
    }

    /// Takes an allocation out if `is_it` says so: the driver may have given its name out again.
    pub fn remove_if(&self, key: Key, is_it: impl Fn(&Allocation) -> bool) -> Option<Allocation> {
        let mut live = self.live.lock();
        live.book.get(key).filter(is_it)?;
        self.take(&mut live, key)
    }

    /// Takes an allocation out for a free that begins now. Waits until no other thread frees it.
    pub fn begin_free(&self, key: Key) -> Free<'_> {
        loop {
            let mut live = self.live.lock();
            if let Some(begun) = live.frees.begin(&self.frees, key) {
                let taken = self.take(&mut live, key);
                return Free {
                    ledger: self,
                    key,
                    begun,
                    taken,
                };
            }
            drop(live);
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    fn take(&self, live: &mut Live, key: Key) -> Option<Allocation> {
        let allocation = live.book.remove(key)?;
        self.gone(&allocation);
        Some(allocation)
    }

    /// An allocation is gone; the ledger's lock is held.
    fn gone(&self, allocation: &Allocation) {
        if allocation.class == Class::Linear {
            self.device(allocation.device).linear.returned(allocation.reserved());
        }
        self.change_locked(allocation.device, allocation.class, |totals, _| {
            totals.subtract(allocation)
        });
    }

    pub fn get(&self, key: Key) -> Option<Allocation> {
        self.live.lock().book.get(key)
    }

    /// Live allocations that `chosen` picks; a copy, so that the caller may change the ledger.
    pub fn select(&self, chosen: impl Fn(&Key, &Allocation) -> bool) -> Vec<(Key, Allocation)> {
        let live = self.live.lock();
        live.book
            .each()
            .filter(|(key, allocation)| chosen(key, allocation))
            .collect()
    }

    /// A policy obtained a segment of `bytes` from the next layer, or gave one back.
    pub fn segment_changes(&self, device: i16, bytes: u64, is_obtained: bool) {
        let _live = self.live.lock();
        let linear = &self.device(device).linear;
        // `change_locked` calls its closure for the class and for the device, and the history counts a segment once.
        if is_obtained {
            linear.obtained(bytes);
            self.change_locked(device, Class::Linear, |totals, _| totals.reserved.add(bytes, 0));
        } else {
            linear.returned(bytes);
            self.change_locked(device, Class::Linear, |totals, _| totals.reserved.subtract(bytes));
        }
    }

    /// The driver's own pools now hold `now` bytes; they held `before`.
    pub fn driver_pools_hold(&self, device: i16, class: Class, before: u64, now: u64) {
        self.change(device, class, |totals, _| totals.reserved.change(before, now, 0));
    }

    /// Launched graphs now use `now` bytes of graph memory; they used `before`.
    pub fn graphs_use(&self, device: i16, before: u64, now: u64) {
        self.change(device, Class::Graph, |totals, pooled| {
            totals.requested.change(before, now, pooled.requested);
            totals.allocated.change(before, now, pooled.allocated);
        });
    }

    pub fn failed(&self, device: i16, class: Class) {
        self.change(device, class, |totals, _| totals.failed());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_name_given_out_again_replaces_the_stale_entry() {
        let ledger = Ledger::default();
        for bytes in [100, 30] {
            let allocation = Allocation {
                class: Class::Linear,
                device: 0,
                context: 1,
                requested: bytes,
                allocated: bytes,
                takes_nothing: false,
            };
            ledger.insert(Key::Address(0x1000), allocation);
        }
        assert_eq!(ledger.readings(0, None).requested.current, 30);
    }
    #[test]
    fn at_most_one_free_of_an_allocation_runs_at_a_time() {
        const THREADS: usize = 4;
        let (ledger, running, most) = (Ledger::default(), AtomicU32::new(0), AtomicU32::new(0));
        let all = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    all.wait();
                    for _ in 0..50 {
                        let _other = ledger.begin_free(Key::Object(0x1000));
                        let _free = ledger.begin_free(Key::Address(0x1000));
                        most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
    }
}
