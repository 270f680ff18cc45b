//! Plays a recorded sequence of requests through policies, offline.
//!
//! `trace` reads the sequence (`snapshot` where it is PyTorch's), `device` is the simulated device memory under our own
//! policies, `torch` models PyTorch's caching allocator and `paddle` Paddle's two. Each answers the same question: how
//! much would have been reserved for what was asked. `recommendation` tells which answer is worth acting upon.

pub mod device;
mod paddle;
pub mod recommendation;
mod snapshot;
mod torch;
mod trace;

pub use trace::{Request, Source, Trace};

use std::collections::HashMap;

use base::cuda::DriverError;
use policy::device_memory::DeviceMemory;
use policy::{Policy, Settings, Strategy, UsedBy};

use device::ModelDevice;
use torch::CachingAllocator;

/// How one strategy fared. Bytes, but for the count.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub name: &'static str,
    pub peak_reserved: u64,
    /// Calls that reached the driver for device memory.
    pub driver_calls: u64,
    /// How often the job waited for the device before out of memory would have been reported. `None` for allocators whose
    /// waits are not counted.
    pub synchronisations: Option<u64>,
    /// Requests that the device had no memory for.
    pub failed: u64,
}

/// Models of allocators that are not the library's own.
const MODELS: &[&str] = &[
    "torch",
    "torch_expandable",
    "paddle_auto_growth",
    "paddle_naive_best_fit",
];

/// Names of the strategies that can be played, in the order they are shown.
pub fn strategies() -> impl Iterator<Item = &'static str> {
    let own = Strategy::ALL.iter().map(|strategy| strategy.name());
    own.chain(MODELS.iter().copied())
}

/// How many requests are played between two calls of `tick`.
const TICK: usize = 1 << 16;

/// What serves the requests of a trace.
trait Allocator {
    /// A handle for `size` bytes, used on `stream` where the trace names it.
    fn allocate(&mut self, size: u64, stream: Option<u64>) -> Result<u64, DriverError>;
    fn free(&mut self, handle: u64, stream: Option<u64>);
    fn synchronisations(&self) -> Option<u64> {
        None
    }
}

/// Plays `trace` through the strategy of this name on a device of `device_memory` bytes; `None` for an unknown name.
/// `tick` hears now and then how many requests went by since it was last called.
pub fn play(trace: &Trace, name: &str, settings: &Settings, device_memory: u64, tick: &dyn Fn(u64)) -> Option<Outcome> {
    attempt(trace, name, settings, device_memory, u64::MAX, tick)
}

/// As `play`, and ends where `enough_failed` requests have failed.
fn attempt(
    trace: &Trace,
    name: &str,
    settings: &Settings,
    device_memory: u64,
    enough_failed: u64,
    tick: &dyn Fn(u64),
) -> Option<Outcome> {
    let name = strategies().find(|known| *known == name)?;
    let device = ModelDevice::new(device_memory);
    let flags = paddle::Flags {
        fraction: settings.fraction,
        initial: settings.initial_bytes,
        reallocate: settings.reallocate_bytes,
        chunk: settings.chunk_bytes,
    };
    let mut allocator: Box<dyn Allocator + '_> = match name {
        "torch" => Box::new(CachingAllocator::new(&device, false)),
        "torch_expandable" => Box::new(CachingAllocator::new(&device, true)),
        "paddle_auto_growth" => Box::new(paddle::AutoGrowth::new(&device, flags)),
        "paddle_naive_best_fit" => Box::new(paddle::NaiveBestFit::new(&device, flags)),
        _ => match Strategy::parse(name).and_then(|strategy| strategy.create(settings)) {
            Some(policy) => Box::new(Ours {
                policy,
                device: &device,
                waits: 0,
            }),
            None => Box::new(Direct { device: &device }),
        },
    };
    let failed = drive(trace, &mut *allocator, enough_failed, tick);
    Some(Outcome {
        name,
        peak_reserved: device.peak(),
        driver_calls: device.calls(),
        synchronisations: allocator.synchronisations(),
        failed,
    })
}

/// The smallest device, in whole MiB, on which the strategy of `outcome` serves every request; to 1 MiB or 0.1%,
/// whichever is more. `outcome` is what it did on a device of `device_memory` bytes.
pub fn smallest_device(
    trace: &Trace,
    outcome: &Outcome,
    settings: &Settings,
    device_memory: u64,
    tick: &dyn Fn(u64),
) -> Option<u64> {
    const MIB: u64 = 1 << 20;
    const MOST: u64 = 1 << 40;
    let fits = |mebibytes: u64| {
        attempt(trace, outcome.name, settings, mebibytes * MIB, 1, tick).is_some_and(|outcome| outcome.failed == 0)
    };
    let live = trace.peak_live.div_ceil(MIB);
    if live >= MOST {
        return None;
    }
    // What is too small, and a first guess at what is enough: what it got by with, or more than where it failed. A
    // strategy that reserves a share of the device takes far more than it needs of a large one, and may get too little
    // of one as small as that: so the guess is no more than twice what was live, and it is tried.
    let (mut least, mut enough) = match outcome.failed {
        0 => (
            live.saturating_sub(1),
            outcome.peak_reserved.div_ceil(MIB).min(2 * live),
        ),
        _ => {
            let failed_on = device_memory / MIB;
            (live.saturating_sub(1).max(failed_on), live.max(failed_on + 1))
        }
    };
    while !fits(enough) {
        least = least.max(enough);
        enough = enough.checked_mul(2).filter(|&mebibytes| mebibytes < MOST)?;
    }
    while enough - least > (enough / 1000).max(1) {
        let middle = least + (enough - least) / 2;
        if fits(middle) {
            enough = middle;
        } else {
            least = middle;
        }
    }
    Some(enough * MIB)
}

fn drive(trace: &Trace, allocator: &mut dyn Allocator, enough_failed: u64, tick: &dyn Fn(u64)) -> u64 {
    let mut handles = HashMap::new();
    let mut failed = 0;
    for requests in trace.requests.chunks(TICK) {
        for request in requests {
            match *request {
                Request::Allocate { id, size, stream } => match allocator.allocate(size, stream) {
                    Ok(handle) => drop(handles.insert(id, handle)),
                    Err(_) => failed += 1,
                },
                Request::Free { id, stream } => {
                    if let Some(handle) = handles.remove(&id) {
                        allocator.free(handle, stream);
                    }
                }
            }
            if failed >= enough_failed {
                return failed;
            }
        }
        tick(requests.len() as u64);
    }
    failed
}

/// One of our own policies, driven as the library drives it. Requests that name a stream are those of
/// `vramshim_torch_alloc`, others those of `cuMemAlloc`.
struct Ours<'a> {
    policy: Box<dyn Policy>,
    device: &'a ModelDevice,
    waits: u64,
}

impl Ours<'_> {
    fn record_events(&mut self) {
        for wanted in self.policy.take_wanted_events() {
            let recorded = wanted.record(self.device);
            self.policy.events_recorded(self.device, wanted, recorded);
        }
    }
}

impl Allocator for Ours<'_> {
    fn allocate(&mut self, size: u64, stream: Option<u64>) -> Result<u64, DriverError> {
        self.device.requested();
        let mut result = self.policy.allocate(self.device, size, stream);
        if result == Err(DriverError::OUT_OF_MEMORY) {
            let ticket = self.policy.begin_wait();
            if let Some(ticket) = ticket {
                self.waits += 1;
                self.policy.end_wait(self.device, ticket);
            }
            if self.policy.release_idle(self.device) > 0 || ticket.is_some() {
                result = self.policy.allocate(self.device, size, stream);
            }
        }
        self.record_events();
        result.map(|block| block.address)
    }

    fn free(&mut self, handle: u64, stream: Option<u64>) {
        let used_by = match stream.as_slice() {
            [] => UsedBy::Nothing,
            streams => UsedBy::Streams(streams),
        };
        self.policy.free(self.device, handle, used_by);
        self.record_events();
    }

    fn synchronisations(&self) -> Option<u64> {
        Some(self.waits)
    }
}

/// Every request is the driver's.
struct Direct<'a> {
    device: &'a ModelDevice,
}

impl Allocator for Direct<'_> {
    fn allocate(&mut self, size: u64, _stream: Option<u64>) -> Result<u64, DriverError> {
        self.device.allocate(size)
    }

    fn free(&mut self, handle: u64, _stream: Option<u64>) {
        // A segment of the model's own is always taken back.
        let _ = self.device.free(handle);
    }
}
