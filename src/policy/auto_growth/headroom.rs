//! The headroom: what the device, the limit and the group still have, as last known.

use super::space::LARGEST_RANGE;
use super::tuned;
use crate::device_memory::Available;

#[derive(Debug, Default)]
pub(super) struct Headroom {
    pub total: u64,
    /// What it had when it was asked last, and what was reserved then.
    free: u64,
    reserved: u64,
}

impl Headroom {
    /// The device was asked when so much was reserved. A device that tells nothing has as much as there are addresses.
    pub fn learn(&mut self, available: Available, reserved: u64) {
        let Available { free, total } = match available.total {
            0 => Available {
                free: LARGEST_RANGE,
                total: LARGEST_RANGE,
            },
            _ => available,
        };
        *self = Headroom { total, free, reserved };
    }

    /// The device had no more.
    pub fn exhausted(&mut self, reserved: u64) {
        (self.free, self.reserved) = (0, reserved);
    }

    /// Whether the device is to be asked again: half of what it had is taken, or it had nothing.
    pub fn is_old(&self, reserved: u64) -> bool {
        self.bytes(reserved) <= self.free / 2
    }

    /// Bytes that the device has, if so much is reserved now.
    pub fn bytes(&self, reserved: u64) -> u64 {
        (self.free + self.reserved).saturating_sub(reserved)
    }

    /// Whether memory is short when `more` bytes are taken.
    pub fn is_short(&self, reserved: u64, more: u64) -> bool {
        self.bytes(reserved).saturating_sub(more) < self.total / tuned::SHARE_IF_SHORT
    }

    /// Bytes by which the handles of a region grow that requests share, if it has `held` bytes.
    pub fn step(&self, held: u64, reserved: u64) -> u64 {
        let bytes = self.bytes(reserved) / tuned::STEP_OF_HEADROOM;
        bytes.min(reserved / tuned::STEP_OF_RESERVED).min(held)
    }

    /// Bytes of the largest handle for a large request.
    pub fn largest_handle(&self, reserved: u64) -> u64 {
        self.bytes(reserved) / tuned::HANDLE_OF_HEADROOM
    }

    /// Bytes that a stitch must save.
    pub fn least_spared(&self, reserved: u64) -> u64 {
        self.bytes(reserved) / tuned::SPARED_OF_HEADROOM
    }
}
