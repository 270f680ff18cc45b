//! The memory that this process may take of each device, and what it has taken.
//!
//! Bytes are charged when they are obtained from the next layer. What the driver holds for the process's contexts counts
//! too, as far as it can be measured. Memory is charged before the next layer is asked for it, and refunded after the next
//! layer took it back. So the processes that share a limit never hold more than the limit together. Only the driver knows
//! what launched graphs take, so that is charged afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::next::{self, CUuuid};
use base::cuda::{MAX_DEVICES, check};
use policy::device_memory::Available;
use quota::{Device, DeviceQuota, Quota, Refusal};

/// Bytes that were charged and are not obtained yet. What is left when the grant is dropped is refunded.
pub struct Grant<'a> {
    quota: Option<&'a DeviceQuota>,
    bytes: u64,
}

impl Grant<'_> {
    /// `bytes` were obtained. Up to the granted number they stay charged; the rest is charged now, whatever the limit.
    pub fn spend(&mut self, bytes: u64) {
        let Some(quota) = self.quota else { return };
        quota.add(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if let Some(quota) = self.quota {
            quota.give(self.bytes);
        }
    }
}

/// A device as the next layer describes it; `None` before the driver is initialised.
pub fn describe(ordinal: i16) -> Option<Device> {
    let ordinal = i32::from(ordinal);
    let mut uuid = CUuuid { bytes: [0; 16] };
    let mut total = 0usize;
    // SAFETY: both pointers are to variables of this frame. The first version of the UUID call names the whole GPU even
    // if the device is a part of one (MIG), so it comes second.
    let known = unsafe {
        check(next::cuDeviceTotalMem_v2(&mut total, ordinal)).is_ok()
            && (check(next::cuDeviceGetUuid_v2(&mut uuid, ordinal)).is_ok()
                || check(next::cuDeviceGetUuid(&mut uuid, ordinal)).is_ok())
    };
    known.then(|| Device {
        ordinal,
        uuid: uuid.bytes.map(|byte| byte as u8),
        total: total as u64,
    })
}

pub struct Limits {
    quota: &'static Quota,
    /// Requests that failed for lack of memory, by device.
    out_of_memory: [AtomicU64; MAX_DEVICES],
}

impl Limits {
    pub fn new(quota: &'static Quota) -> Limits {
        Limits {
            quota,
            out_of_memory: [const { AtomicU64::new(0) }; MAX_DEVICES],
        }
    }

    /// The quota of a device; `None` if it has neither a limit nor a shared account.
    #[inline]
    pub fn of(&self, device: i16) -> Option<&'static DeviceQuota> {
        self.quota.device(device, || describe(device))
    }

    /// Charges `bytes` of a device.
    pub fn grant(&self, device: i16, bytes: u64) -> Result<Grant<'static>, Refusal> {
        let Some(quota) = self.of(device).filter(|_| bytes > 0) else {
            return Ok(Grant { quota: None, bytes: 0 });
        };
        quota.take(bytes).map(|()| Grant {
            quota: Some(quota),
            bytes,
        })
    }

    /// `bytes` of a device went back to the next layer.
    pub fn refund(&self, device: i16, bytes: u64) {
        if bytes > 0
            && let Some(quota) = self.of(device)
        {
            quota.give(bytes);
        }
    }

    /// The next layer's figures for a device, reduced to the limit.
    pub fn within(&self, device: i16, actual: Available) -> Available {
        let Some((limit, available)) = self
            .of(device)
            .and_then(|quota| Some((quota.limit?, quota.available()?)))
        else {
            return actual;
        };
        Available {
            free: actual.free.min(available),
            total: actual.total.min(limit),
        }
    }

    /// Whether the limit alone would refuse a request of this size.
    pub fn would_refuse(&self, device: i16, size: u64) -> bool {
        self.of(device)
            .and_then(DeviceQuota::available)
            .is_some_and(|available| available < size)
    }

    /// Counts a request that failed for lack of memory; returns how many have failed on the device so far.
    pub fn count_out_of_memory(&self, device: i16) -> Option<u64> {
        let count = self.out_of_memory.get(usize::try_from(device).ok()?)?;
        Some(count.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
