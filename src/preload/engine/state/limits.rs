//! Limits at work: what is taken is granted first, what is given back is given back to the account as well.
//!
//! What counts is what was obtained from the layer below, and with it what the driver has for the process's contexts as
//! far as that can be measured (`measure`). The account is told of memory before the driver is asked for it, and of its
//! return after the driver took it back, so that all who share a limit never have more than it together. What launched
//! graphs take only the driver knows, so that is told afterwards.

use tracing::warn;

use crate::engine::state::ledger::Allocation;
use crate::engine::{Call, Engine, Place};
use crate::next::{self, CUuuid, SUCCESS};
use base::units::size as words;
use policy::device_memory::Available;
use quota::{Device, DeviceQuota, Refusal};

/// What an account has granted and nobody has obtained yet; given back when it is dropped.
pub struct Grant<'a> {
    quota: Option<&'a DeviceQuota>,
    bytes: u64,
}

impl Grant<'_> {
    /// `bytes` were obtained: as far as they were granted they stay taken, and the rest is booked as it is.
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

/// A device as the layer below knows it; `None` before the driver is initialised.
pub fn describe(ordinal: i16) -> Option<Device> {
    let ordinal = i32::from(ordinal);
    let mut uuid = CUuuid { bytes: [0; 16] };
    let mut total = 0usize;
    // SAFETY: both are this frame's own values. The first version knows no part of a device (MIG), only the whole.
    let known = unsafe {
        next::cuDeviceTotalMem_v2(&mut total, ordinal) == SUCCESS
            && (next::cuDeviceGetUuid_v2(&mut uuid, ordinal) == SUCCESS
                || next::cuDeviceGetUuid(&mut uuid, ordinal) == SUCCESS)
    };
    known.then(|| Device {
        ordinal,
        uuid: uuid.bytes.map(|byte| byte as u8),
        total: total as u64,
    })
}

impl Engine {
    /// What limits a device, or keeps a shared account of it.
    #[inline]
    pub(crate) fn quota(&self, device: i16) -> Option<&'static DeviceQuota> {
        self.quota.device(device, || describe(device))
    }

    /// Takes `bytes` of a device from its account, after giving back what lies idle with us where that is needed.
    pub(crate) fn grant(&self, device: i16, bytes: u64) -> Result<Grant<'static>, Refusal> {
        let quota = self.quota(device).filter(|_| bytes > 0);
        let Some(quota) = quota else {
            return Ok(Grant { quota: None, bytes: 0 });
        };
        // What contexts take comes first.
        self.saw_device(device);
        let taken = quota.take(bytes).or_else(|refusal| match self.release_idle(device) {
            0 => Err(refusal),
            _ => quota.take(bytes),
        });
        taken.map(|()| Grant {
            quota: Some(quota),
            bytes,
        })
    }

    /// `bytes` of a device went back to the layer below.
    pub(crate) fn refund(&self, device: i16, bytes: u64) {
        if bytes > 0
            && let Some(quota) = self.quota(device)
        {
            quota.give(bytes);
        }
    }

    /// An allocation went back to the layer below.
    pub(crate) fn refund_allocation(&self, allocation: &Allocation) {
        if allocation.class.is_device_memory() {
            self.refund(allocation.device, allocation.reserved);
        }
    }

    /// The layer below's figures for a device within its limit.
    pub(crate) fn within_limit(&self, device: i16, told: Available) -> Available {
        let Some((limit, available)) = self
            .quota(device)
            .and_then(|quota| Some((quota.limit?, quota.available()?)))
        else {
            return told;
        };
        Available {
            free: told.free.min(available),
            total: told.total.min(limit),
        }
    }

    /// Tells on stderr why a request failed for lack of memory.
    pub(crate) fn tell_out_of_memory(&self, place: Place, requested: u64) {
        let device = place.device;
        let Some(refusals) = usize::try_from(device).ok().and_then(|index| self.refusals.get(index)) else {
            return;
        };
        // The first, the second, the fourth...: a job may live by trying.
        let count = refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        if !count.is_power_of_two() {
            return;
        }
        let readings = self.ledger.readings(device, None);
        let (inside, largest) = self.free_inside(device);
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both are this frame's own values.
        let asked = unsafe { next::cuMemGetInfo_v2(&mut free, &mut total) };
        let told = Available {
            free: if asked == SUCCESS { free as u64 } else { 0 },
            total: total as u64,
        };
        let available = self.within_limit(device, told).free + inside;
        let mut text = format!(
            "Out of memory error on GPU {device}. Cannot allocate {} memory on GPU {device}, {} memory has been allocated \
             and available memory is only {}. This process has {} reserved",
            words(requested),
            words(readings.allocated.current),
            words(available),
            words(readings.reserved.current),
        );
        if inside > 0 {
            text += &format!(", {} of it free, the largest piece {}", words(inside), words(largest));
        }
        if self.capturing() {
            text += "; while a stream capture is open, what was freed since it began cannot be used again";
        }
        if let Some((quota, limit)) = self.quota(device).and_then(|quota| Some((quota, quota.limit?))) {
            text += &format!(
                "; the limit of its {} is {} ({}), {} of it used",
                quota.scope.name(),
                words(limit),
                quota.from,
                words(quota.used())
            );
        }
        match count {
            1 => warn!("{text}"),
            _ => warn!("{text} (failure {count})"),
        }
    }

    /// Whether a request of this size fails for the limit's sake alone.
    pub(crate) fn is_limited(&self, device: i16, size: u64) -> bool {
        self.quota(device)
            .and_then(DeviceQuota::available)
            .is_some_and(|available| available < size)
    }
}

impl Call {
    /// Corrects a device's total that the layer below has answered with `result`.
    ///
    /// # Safety
    /// `out` is null or writable, and written where `result` is success.
    pub unsafe fn device_total<T: Copy + Ord + TryFrom<u64>>(&self, out: *mut T, device: i32, result: i32) -> i32 {
        if result == SUCCESS
            && !out.is_null()
            && let Some(limit) = i16::try_from(device).ok().and_then(|device| self.engine.quota(device)?.limit)
            // One too large for the type is no limit to it.
            && let Ok(limit) = T::try_from(limit)
        {
            // SAFETY: not null, and just written.
            unsafe { *out = (*out).min(limit) };
        }
        result
    }
}
