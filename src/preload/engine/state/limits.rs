//! The memory that this process may take of each device, and what it has taken.
//!
//! Bytes are charged when they are obtained from the next layer. What the driver holds for the process's contexts counts
//! too, as far as it can be measured. Memory is charged before the next layer is asked for it, and refunded after the next
//! layer took it back. So the processes that share a limit never hold more than the limit together. Only the driver knows
//! what launched graphs take, so that is charged afterwards.
//!
//! Other processes go on while a refusal is explained, and what they give back meanwhile did not help the request. So each
//! thread keeps the figures of its last refusal.

use std::cell::Cell;

use crate::next::{self, CUuuid};
use base::cuda::check;
use base::shortage::MemInfo;
use base::units::size;
use config::table::{LIMIT, PADDLES_LIMIT, POD_LIMIT};
use journal::format::LimitSource;
use quota::{Device, DeviceQuota, Quota, Refusal};

thread_local! {
    /// The device and the figures of the last charge of this thread, if it was refused.
    static REFUSED: Cell<Option<(i16, Refusal)>> = const { Cell::new(None) };
}

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
    let device = i32::from(ordinal);
    let mut total = 0usize;
    // SAFETY: the pointer is to a variable of this frame.
    next::retried(|| check(unsafe { next::cuDeviceTotalMem_v2(&mut total, device) })).ok()?;
    Some(Device {
        ordinal: device,
        uuid: uuid(ordinal)?,
        total: total as u64,
    })
}

/// The UUID of a device. Calls no function that a layer is known to hook: the caller may be a layer that begins.
pub fn uuid(ordinal: i16) -> Option<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointers are to a variable of this frame. The first version names the whole GPU even if the device is a
    // part of one (MIG), so it comes second.
    let known = unsafe {
        check(next::cuDeviceGetUuid_v2(&mut uuid, ordinal.into())).is_ok()
            || check(next::cuDeviceGetUuid(&mut uuid, ordinal.into())).is_ok()
    };
    known.then(|| uuid.bytes.map(|byte| byte as u8))
}

pub struct Limits {
    pub quota: &'static Quota,
}

impl Limits {
    /// The quota of a device; `None` if it has neither a limit nor a shared account.
    #[inline]
    pub fn of(&self, device: i16) -> Option<&'static DeviceQuota> {
        self.quota.device(device, || self.describe(device))
    }

    /// A device as its limit is taken of it. A limit that is what the next layer shows is the smaller one of two figures:
    /// some layers hook `cuMemGetInfo` alone (nvshare's list of hooks), others `cuDeviceTotalMem` too. `None` as long as the
    /// device has no context in which `cuMemGetInfo` could be asked.
    fn describe(&self, device: i16) -> Option<Device> {
        let described = describe(device)?;
        if !self.quota.takes_what_is_shown() {
            return Some(described);
        }
        let shown = next::information_of(device)?.total;
        (shown > 0).then(|| Device {
            total: described.total.min(shown),
            ..described
        })
    }

    /// Where a limit comes from.
    pub fn source(&self, quota: &DeviceQuota) -> LimitSource {
        let takes_a_layers = self.quota.takes_what_is_shown() && next::shows_its_own_memory();
        match quota.from {
            from if from == PADDLES_LIMIT.name => LimitSource::PaddleFlag,
            _ if takes_a_layers => LimitSource::Layer,
            from if from == POD_LIMIT.name => LimitSource::Operator,
            from if from == LIMIT.name => LimitSource::Variable,
            _ => LimitSource::Layer,
        }
    }

    /// Charges `bytes` of a device. What is granted is refunded but for what is spent.
    pub fn grant(&self, device: i16, bytes: u64) -> Result<Grant<'static>, Refusal> {
        let quota = self.take(device, bytes)?;
        Ok(Grant { quota, bytes })
    }

    /// Charges `bytes` of a device. Returns its quota, if it has one.
    pub fn take(&self, device: i16, bytes: u64) -> Result<Option<&'static DeviceQuota>, Refusal> {
        let quota = self.of(device).filter(|_| bytes > 0);
        let taken = quota.map_or(Ok(()), |quota| quota.take(bytes));
        // A thread that ends has no place for it any more.
        let _ = REFUSED.try_with(|refused| refused.set(taken.err().map(|refusal| (device, refusal))));
        taken.map(|()| quota)
    }

    /// A failure of this thread was explained. A later one may have another reason.
    pub fn told(&self) {
        let _ = REFUSED.try_with(|refused| refused.set(None));
    }

    /// The figures with which the limit of a device refused the last charge of this thread. `None` if it did not refuse it.
    pub fn refused(&self, device: i16) -> Option<Refusal> {
        let (of, refusal) = REFUSED.try_with(Cell::get).ok().flatten()?;
        (of == device).then_some(refusal)
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
    pub fn within(&self, device: i16, actual: MemInfo) -> MemInfo {
        let allowed = self
            .of(device)
            .and_then(|quota| Some((quota.limit?, quota.available()?)));
        allowed.map_or(actual, |(limit, available)| MemInfo {
            free: actual.free.min(available),
            total: actual.total.min(limit),
        })
    }

    /// What the user should know of limits that have no effect, when a device is used: a limit above the device's memory
    /// and, for the `first` device, limits that name devices which the process does not have.
    pub fn without_effect(&self, device: i16, first: bool) -> Vec<String> {
        let mut remarks = Vec::new();
        if let (Some(quota), Some(described)) = (self.of(device), describe(device))
            && let Some(limit) = quota.limit
        {
            let (text, total) = (size(limit), size(described.total));
            if limit > described.total {
                remarks.push(format!(
                    "the limit of device {device}, {text} ({}), is more than the device has, {total}: it refuses nothing",
                    quota.from
                ));
            } else if limit < described.total && self.quota.takes_what_is_shown() {
                remarks.push(format!(
                    "the limit of device {device} is {text}, the total that the next layer's cuMemGetInfo shows; its \
                     cuDeviceTotalMem shows {total}"
                ));
            }
        }
        if first && self.quota.is_in_force {
            let count = i16::try_from(next::device_count()).unwrap_or(i16::MAX);
            let devices: Vec<Device> = (0..count).filter_map(describe).collect();
            for name in self.quota.limits_of_none(&devices) {
                let devices = match count {
                    1 => "device 0 alone".to_owned(),
                    _ => format!("devices 0 to {}", count - 1),
                };
                remarks.push(format!(
                    "the limit for device {name} holds for nothing: this process has {devices}"
                ));
            }
        }
        remarks
    }

    /// Whether the limit alone would refuse a request of this size.
    pub fn would_refuse(&self, device: i16, size: u64) -> bool {
        self.of(device)
            .and_then(DeviceQuota::available)
            .is_some_and(|available| available < size)
    }
}
