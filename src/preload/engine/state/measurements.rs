//! When each device is measured.
//!
//! To measure a device is to write down what the next layer and NVML say of it beside the ledger's figures. A device is
//! measured when it is used first, when a context is gone, and after its memory grew, but then at most once a second.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use super::per_device::PerDevice;
use crate::next;
use base::cuda::MAX_DEVICES;

const UNUSED: u8 = 0;
const MEASURED: u8 = 1;
/// Measured, and grown since.
const GREW: u8 = 2;

/// The least time between two measurements of a device that grows.
const INTERVAL_MS: u64 = 1000;

/// A measurement that is due.
pub enum Due {
    /// The job uses the device for the first time.
    FirstUse,
    /// Memory of the device grew, and the last measurement is old enough.
    Growth,
}

/// Which devices the job has used, and when they were measured.
#[derive(Default)]
pub struct Measurements(PerDevice<OfDevice>);

#[derive(Default)]
struct OfDevice {
    /// One of the three above.
    state: AtomicU8,
    /// The time of the last measurement as `now_ms` gives it; 0 if the next one is due in any case.
    measured_ms: AtomicU64,
}

/// Milliseconds of a monotonic clock, more than 0. A growing job asks for this at every request, so this clock is the
/// coarse one: it is cheap to read and some milliseconds late.
pub fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000 + 1
}

impl Measurements {
    /// Whether the job has used this device.
    pub fn is_used(&self, device: i16) -> bool {
        self.0
            .of_device(device)
            .is_some_and(|one| one.state.load(Relaxed) != UNUSED)
    }

    /// Whether the job has a device of this number. The driver is asked only if the job has not used the device.
    pub fn is_present(&self, device: i16) -> bool {
        self.0.of_device(device).is_some() && (self.is_used(device) || i32::from(device) < next::device_count())
    }

    /// The devices that the job has used.
    pub fn used_devices(&self) -> impl Iterator<Item = i16> {
        (0..MAX_DEVICES as i16).filter(|&device| self.is_used(device))
    }

    /// Whether a measurement of this device may be due; `take_due` tells.
    #[inline]
    pub fn may_be_due(&self, device: i16) -> bool {
        self.0
            .of_device(device)
            .is_some_and(|one| one.state.load(Relaxed) != MEASURED)
    }

    /// Takes the measurement of a device that is due. One that is not due yet, or that an open capture forbids
    /// (`capturing`), stays pending.
    pub fn take_due(&self, device: i16, capturing: impl FnOnce() -> bool) -> Option<Due> {
        let OfDevice { state, measured_ms } = self.0.of_device(device)?;
        if state.load(Relaxed) == GREW {
            let last = measured_ms.load(Relaxed);
            if last > 0 && now_ms() < last + INTERVAL_MS || capturing() {
                return None;
            }
        }
        match state.swap(MEASURED, Relaxed) {
            UNUSED => Some(Due::FirstUse),
            GREW => Some(Due::Growth),
            _ => None,
        }
    }

    /// Memory of a device was obtained from the next layer.
    pub fn device_grew(&self, device: i16) {
        // Under passthrough every request comes here. The look first spares most of them an atomic change.
        if let Some(OfDevice { state, .. }) = self.0.of_device(device)
            && state.load(Relaxed) == MEASURED
        {
            let _ = state.compare_exchange(MEASURED, GREW, Relaxed, Relaxed);
        }
    }

    /// Notes when a measurement of this device began, as `now_ms` gives it; 0 makes the next one due in any case.
    pub fn measured_at(&self, device: i16, time_ms: u64) {
        if let Some(OfDevice { measured_ms, .. }) = self.0.of_device(device) {
            measured_ms.store(time_ms, Relaxed);
        }
    }
}
