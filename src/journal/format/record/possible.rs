//! Which records can be true. The checksum of a record shows that its bytes did not change, not that its writer was the
//! library. A record that cannot be true counts as damaged, so whoever gets records from a reader may rely on this:
//!
//! - A range of addresses has an end, and no range is longer than `LARGEST_RANGE`.
//! - Memory belongs to the host, or to one of `MAX_DEVICES` devices.
//!
//! What a failed call asked for is not restricted: jobs do ask for 2^63 bytes, and name devices that are not there. Nor is
//! what others say of a device (measurements, limits, other processes).

use base::api::{Class, ClassCode};
use base::cuda::{HOST_DEVICE, MAX_DEVICES};

use super::{Allocation, Event};

/// No memory or range of a process has more bytes. The largest address space that Linux gives a process has 2^56 bytes:
/// x86-64 with five levels of page tables (Documentation/arch/x86/x86_64/5level-paging.rst in Linux). CUDA places all
/// memory in the address space of the process (CUDA C++ Programming Guide, "Unified Virtual Address Space").
pub const LARGEST_RANGE: u64 = 1 << 56;

/// Whether `device` is the host or can be a device. A machine has at most 32 GPUs that the driver knows (`NV_MAX_DEVICES`
/// in nvlimits.h of NVIDIA's open kernel modules).
pub fn is_possible_device(device: i16) -> bool {
    device == HOST_DEVICE || usize::try_from(device).is_ok_and(|device| device < MAX_DEVICES)
}

/// Whether a range of addresses can be one of a process. Its end then fits into 64 bits.
pub fn is_possible_range(address: u64, size: u64) -> bool {
    size <= LARGEST_RANGE && address.checked_add(size).is_some()
}

/// The address of memory of this class is a handle, which may be any number.
fn is_named_by_handle(class: ClassCode) -> bool {
    let class = class.known();
    matches!(class, Some(Class::Vmm | Class::Array | Class::Mipmap | Class::Imported))
}

impl Event {
    pub(super) fn is_possible(&self, device: i16) -> bool {
        let is_possible = match *self {
            Event::Alloc(allocation) | Event::Free { allocation, .. } => allocation.is_possible(),
            Event::SegmentAlloc { address, size, .. }
            | Event::SegmentFree { address, size, .. }
            | Event::Map { address, size, .. }
            | Event::Unmap { address, size } => is_possible_range(address, size),
            Event::StitchPart { address, size, home } => {
                is_possible_range(address, size) && is_possible_range(home, size)
            }
            Event::Host(memory) => memory.largest() <= LARGEST_RANGE,
            Event::Surge(share) => share.grown <= LARGEST_RANGE,
            Event::PoolReserved { reserved, used, .. } => reserved.max(used) <= LARGEST_RANGE,
            _ => true,
        };
        is_possible && is_possible_device(device)
    }
}

impl Allocation {
    fn is_possible(&self) -> bool {
        let size = self.requested.max(self.allocated).max(self.reserved.unwrap_or(0));
        let address = if is_named_by_handle(self.class) {
            0
        } else {
            self.address
        };
        is_possible_range(address, size)
    }
}
