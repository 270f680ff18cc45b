//! What others say of a device, written down beside what we say: the layer below (`cuMemGetInfo`) and, where a limit or a
//! shared account is in force, the driver's management library. The difference between the latter and the ledger is what
//! the driver has for the process's contexts, and is booked on the account.
//!
//! Done when a device is used first, when a context is gone, and after memory grew, but not more than once a second.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::engine::state::limits::describe;
use crate::engine::{Engine, Place};
use crate::next::{self, management};
use base::api::Api;
use base::cuda::MAX_DEVICES;
use journal::format::{Event, MemInfo};
use quota::DeviceQuota;

const UNSEEN: u8 = 0;
const SEEN: u8 = 1;
/// Seen, and there is something new to see.
const GREW: u8 = 2;

const SELDOM_MS: u64 = 1000;

/// Which devices were used, and when they were measured.
pub struct Sightings {
    states: [AtomicU8; MAX_DEVICES],
    /// When, in milliseconds of `now`; 0 where the next look is to measure in any case.
    measured: [AtomicU64; MAX_DEVICES],
}

/// Milliseconds, more than 0. Asked for at every request of a job that grows: a clock that is read in no time, and some
/// milliseconds late.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000 + 1
}

impl Default for Sightings {
    fn default() -> Self {
        Sightings {
            states: [const { AtomicU8::new(UNSEEN) }; MAX_DEVICES],
            measured: [const { AtomicU64::new(0) }; MAX_DEVICES],
        }
    }
}

impl Sightings {
    pub fn has(&self, device: i16) -> bool {
        self.state(device).is_some_and(|state| state.load(Relaxed) != UNSEEN)
    }

    fn state(&self, device: i16) -> Option<&AtomicU8> {
        self.states.get(usize::try_from(device).ok()?)
    }
}

impl Engine {
    /// A call of the job concerned memory of this device.
    #[inline]
    pub(crate) fn saw_device(&self, device: i16) {
        if let Some(state) = self.sightings.state(device)
            && state.load(Relaxed) != SEEN
        {
            self.look_at(device, state);
        }
    }

    /// More of the device was obtained from the layer below.
    pub(crate) fn grew(&self, device: i16) {
        if let Some(state) = self.sightings.state(device) {
            let _ = state.compare_exchange(SEEN, GREW, Relaxed, Relaxed);
        }
    }

    #[cold]
    fn look_at(&self, device: i16, state: &AtomicU8) {
        if state.load(Relaxed) == GREW {
            let last = self.sightings.measured[device as usize].load(Relaxed);
            if last > 0 && now() < last + SELDOM_MS || self.capturing() {
                // Not yet, and not forgotten.
                return;
            }
        }
        match state.swap(SEEN, Relaxed) {
            UNSEEN => {
                self.show_routes();
                self.name_device(device);
                self.measure(device);
            }
            GREW => self.measure(device),
            _ => {}
        }
    }

    /// Writes down a device's name and size.
    fn name_device(&self, device: i16) {
        let Some(journal) = &self.journal else { return };
        let Some(described) = describe(device) else { return };
        let mut name = [0u8; 64];
        // SAFETY: the buffer is this frame's own, of the size that the call is told.
        unsafe { next::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, described.ordinal) };
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        journal.device(
            described.ordinal,
            described.total,
            described.uuid,
            &String::from_utf8_lossy(&name[..length]),
            self.quota(device).and_then(|quota| quota.limit),
        );
    }

    pub(crate) fn measure(&self, device: i16) {
        let Some(measured) = usize::try_from(device)
            .ok()
            .and_then(|index| self.sightings.measured.get(index))
        else {
            return;
        };
        if self.capturing() {
            return;
        }
        measured.store(now(), Relaxed);
        self.refresh_pools(Api::Policy);
        let (mut free, mut total) = (0usize, 0usize);
        if Place::current().is_some_and(|place| place.device == device) {
            // SAFETY: both are this frame's own values.
            unsafe { next::cuMemGetInfo_v2(&mut free, &mut total) };
        }
        let (reserved, of_process) = match self.quota(device) {
            Some(quota) => self.measure_context(device, quota),
            None => (self.reserved(device), 0),
        };
        // An event must not be lost for it, nor it be counted as one that was.
        if self.journal.as_ref().is_none_or(|journal| journal.lost() > 0) {
            return;
        }
        let (total, free) = (total as u64, free as u64);
        let event = Event::Measured {
            mem_info: (total > 0).then_some(MemInfo { total, free }),
            process_bytes: (of_process > 0).then_some(of_process),
            reserved,
        };
        self.write(Api::Policy, device, event);
    }

    /// Measures every device that was used.
    pub(crate) fn measure_all(&self) {
        (0..MAX_DEVICES as i16)
            .filter(|&device| self.sightings.has(device))
            .for_each(|device| self.measure(device));
    }

    /// Measures a device whose context is gone. The next one is measured when it is used first.
    pub(crate) fn measure_last(&self, device: i16) {
        self.measure(device);
        if let Some(measured) = usize::try_from(device)
            .ok()
            .and_then(|index| self.sightings.measured.get(index))
        {
            measured.store(0, Relaxed);
        }
        self.grew(device);
    }

    fn reserved(&self, device: i16) -> u64 {
        self.ledger.readings(device, None).reserved.current
    }

    /// Books what the driver has for this process beside what the ledger has reserved. Returns the ledger's figure and
    /// the management library's, 0 where that does not say.
    fn measure_context(&self, device: i16, quota: &DeviceQuota) -> (u64, u64) {
        for _ in 0..4 {
            let before = self.reserved(device);
            let seat = quota.seat();
            // Memory that another thread is obtaining or giving back is on one side of the comparison only.
            let in_flight = seat.held().saturating_sub(quota.context_bytes()) != before;
            let Some(of_process) = management::process_bytes(quota.uuid) else {
                return (before, 0);
            };
            // Pools give memory back when somebody waits for a stream.
            self.refresh_pools(Api::Policy);
            // What came and went while the library was asked left its number with our seat.
            if !in_flight && quota.seat() == seat && self.reserved(device) == before {
                quota.set_context_bytes(of_process.saturating_sub(before));
                return (before, of_process);
            }
        }
        // The other threads are busy: at the next look.
        self.grew(device);
        (self.reserved(device), 0)
    }
}
