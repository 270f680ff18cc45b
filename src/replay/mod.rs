//! Plays a recorded sequence of requests through policies, offline.
//!
//! `trace` reads the sequence (`snapshot` where it is PyTorch's), `device` is the simulated device memory under our own policies, `torch` models PyTorch's
//! caching allocator. Each answers the same question: how much would have been reserved for what was asked.

mod device;
mod snapshot;
mod torch;
mod trace;

pub use trace::{Request, Trace};

use std::collections::HashMap;

use vramshim::device_memory::{DeviceMemory, DriverError};
use vramshim::policy::{self, Policy, Settings, Strategy};

use device::ModelDevice;
use torch::CachingAllocator;

/// How one strategy fared. Bytes, but for the count.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub name: &'static str,
    pub peak_reserved: u64,
    /// Calls that reached the driver for device memory.
    pub driver_calls: u64,
    /// Requests that the device had no memory for.
    pub failed: u64,
}

/// Names of the strategies that can be played, in the order they are shown.
pub const STRATEGIES: &[&str] = &[
    "passthrough",
    "naive_best_fit",
    "auto_growth",
    "torch",
    "torch_expandable",
];

/// What serves the requests of a trace.
trait Allocator {
    /// A handle for `size` bytes.
    fn allocate(&mut self, size: u64, stream: u64) -> Result<u64, DriverError>;
    fn free(&mut self, handle: u64);
}

/// Plays `trace` through the strategy of this name on a device of `device_memory` bytes; `None` for an unknown name.
pub fn play(trace: &Trace, name: &str, settings: &Settings, device_memory: u64) -> Option<Outcome> {
    let name = STRATEGIES.iter().copied().find(|known| *known == name)?;
    let device = ModelDevice::new(device_memory);
    let failed = match name {
        "torch" => drive(trace, &mut CachingAllocator::new(&device, false)),
        "torch_expandable" => drive(trace, &mut CachingAllocator::new(&device, true)),
        _ => match Strategy::parse(name).and_then(|strategy| policy::create(strategy, settings)) {
            Some(policy) => drive(
                trace,
                &mut Ours {
                    policy,
                    device: &device,
                },
            ),
            None => drive(trace, &mut Direct { device: &device }),
        },
    };
    Some(Outcome {
        name,
        peak_reserved: device.peak(),
        driver_calls: device.calls(),
        failed,
    })
}

/// The smallest device, in whole MiB, on which the strategy serves every request.
pub fn smallest_device(trace: &Trace, name: &str, settings: &Settings) -> Option<u64> {
    const MIB: u64 = 1 << 20;
    let fits = |mebibytes: u64| play(trace, name, settings, mebibytes * MIB).is_some_and(|outcome| outcome.failed == 0);
    let mut least = trace.peak_live / MIB;
    let mut enough = least.max(1);
    while !fits(enough) {
        enough = enough.checked_mul(2).filter(|&mebibytes| mebibytes < 1 << 40)?;
    }
    while least + 1 < enough {
        let middle = least + (enough - least) / 2;
        if fits(middle) {
            enough = middle;
        } else {
            least = middle;
        }
    }
    Some(enough * MIB)
}

fn drive(trace: &Trace, allocator: &mut impl Allocator) -> u64 {
    let mut handles = HashMap::new();
    let mut failed = 0;
    for request in &trace.requests {
        match *request {
            Request::Allocate { id, size, stream } => match allocator.allocate(size, stream) {
                Ok(handle) => drop(handles.insert(id, handle)),
                Err(_) => failed += 1,
            },
            Request::Free { id } => {
                if let Some(handle) = handles.remove(&id) {
                    allocator.free(handle);
                }
            }
        }
    }
    failed
}

/// One of our own policies.
struct Ours<'a> {
    policy: Box<dyn Policy>,
    device: &'a ModelDevice,
}

impl Allocator for Ours<'_> {
    fn allocate(&mut self, size: u64, _stream: u64) -> Result<u64, DriverError> {
        self.policy.allocate(self.device, size).map(|block| block.address)
    }

    fn free(&mut self, handle: u64) {
        self.policy.free(self.device, handle);
    }
}

/// Every request is the driver's.
struct Direct<'a> {
    device: &'a ModelDevice,
}

impl Allocator for Direct<'_> {
    fn allocate(&mut self, size: u64, _stream: u64) -> Result<u64, DriverError> {
        self.device.allocate(size)
    }

    fn free(&mut self, handle: u64) {
        // A segment of the model's own is always taken back.
        let _ = self.device.free(handle);
    }
}
