//! The guard: which single requests are too large to be meant, and how many it refused.
//!
//! A length that was read from a damaged message becomes a request of terabytes. Nothing can serve it, but a search for
//! memory would give back every cache on the way. The guard refuses it before anybody is asked.
//!
//! - `VRAMSHIM_MAX_REQUEST` bounds every request for memory, pinned and managed memory among them.
//! - The memory of the device bounds requests for memory of the device, under a strategy, or if that variable is set. So
//!   passthrough changes nothing by default.
//!
//! Managed memory may exceed the device ("the application's working set may oversubscribe the GPU memory", CUDA C++
//! Programming Guide, chapter Unified Memory), so the device never bounds it. A layer behind the library may serve
//! `cuMemAlloc` with managed memory (nvshare hooks it so), and so may Windows under WSL ("CUDA Sysmem Fallback Policy",
//! NVIDIA's support pages). There the device bounds nothing. Address space, registered memory and imports are no memory that
//! is asked for.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::limits::describe;
use super::per_device::PerDevice;
use crate::next;
use base::api::Class;
use base::cuda::HOST_DEVICE;
use base::shortage::Guard;
use policy::Strategy;

/// No request is larger.
const NO_BOUND: u64 = u64::MAX;
/// Each size of granules is a multiple of it (`granularity` in tests/assumptions).
const DIVIDES_ALL_GRANULES: u64 = 64 << 10;
/// The device of WSL (CUDA on WSL User Guide).
const WSL: &str = "/dev/dxg";

pub struct Guards {
    /// `VRAMSHIM_MAX_REQUEST`, or `NO_BOUND`.
    most: u64,
    by_device: bool,
    /// The smaller bound of each device, 0 as long as its memory is not known, and that of the host.
    bounds: PerDevice<AtomicU64>,
    /// The memory of each device, or `NO_BOUND`; 0 as long as it is not known.
    totals: PerDevice<AtomicU64>,
    /// Requests that were refused.
    refused: PerDevice<AtomicU64>,
}

impl Guards {
    pub fn new(max_request: Option<u64>, strategy: Strategy) -> Guards {
        let by_device = max_request.is_some() || strategy != Strategy::Passthrough;
        let first = if by_device { 0 } else { NO_BOUND };
        let guards = Guards {
            most: max_request.unwrap_or(NO_BOUND),
            by_device,
            bounds: PerDevice::each(|| AtomicU64::new(first)),
            totals: PerDevice::default(),
            refused: PerDevice::default(),
        };
        guards.bounds.of(HOST_DEVICE).store(guards.most, Relaxed);
        guards
    }

    /// The guard that refuses a request of this size, if one does. Costs a load and a comparison for the others.
    #[inline]
    pub fn refuses(&self, device: i16, class: Class, size: u64) -> Option<Guard> {
        if size <= self.bounds.of(device).load(Relaxed) {
            None
        } else {
            self.look(device, class, size)
        }
    }

    #[cold]
    fn look(&self, device: i16, class: Class, size: u64) -> Option<Guard> {
        if matches!(class, Class::AddressRange | Class::HostRegistered | Class::Imported) {
            return None;
        }
        // The driver refuses such a size for what it is, and not for lack of memory.
        if class == Class::Vmm && !size.is_multiple_of(DIVIDES_ALL_GRANULES) {
            return None;
        }
        let is_bounded = self.by_device && class.is_device_memory() && class != Class::Managed;
        let total = if is_bounded { self.total(device) } else { NO_BOUND };
        if size > total {
            return Some(Guard {
                bytes: total,
                of_device: true,
            });
        }
        (size > self.most).then_some(Guard {
            bytes: self.most,
            of_device: false,
        })
    }

    /// The memory of a device; `NO_BOUND` if it bounds nothing. The next layer is asked once.
    fn total(&self, device: i16) -> u64 {
        let (Some(total), Some(bound)) = (self.totals.of_device(device), self.bounds.of_device(device)) else {
            return NO_BOUND;
        };
        let known = total.load(Relaxed);
        if known > 0 {
            return known;
        }
        let Some(described) = describe(device) else {
            return NO_BOUND;
        };
        let may_exceed = next::refusing_layer().is_some() || Path::new(WSL).exists();
        let found = if may_exceed || described.total == 0 {
            NO_BOUND
        } else {
            described.total
        };
        total.store(found, Relaxed);
        bound.store(found.min(self.most), Relaxed);
        found
    }

    /// Counts a refused request. Returns how many there were on this device, or on the host.
    pub fn count(&self, device: i16) -> u64 {
        self.refused.of(device).fetch_add(1, Relaxed) + 1
    }

    /// Requests for memory of this device, or of the host, that were refused.
    pub fn refused(&self, device: i16) -> u64 {
        self.refused.of(device).load(Relaxed)
    }
}
