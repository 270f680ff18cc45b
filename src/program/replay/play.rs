//! Plays a trace through one strategy, and searches for the smallest device on which the strategy serves every request.

use std::cell::RefCell;
use std::collections::HashMap;

use base::cuda::DriverError;
use policy::device_memory::DeviceMemory;
use policy::{Due, Holder, Policy, Settings, Strategy, UsedBy};

use super::allocator::Allocator;
use super::device::ModelDevice;
use super::gathering::{Request, Source};
use super::paddle;
use super::torch::CachingAllocator;
use super::trace::Trace;

/// The result of one strategy. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub name: &'static str,
    pub peak_reserved: u64,
    /// Calls that reached the driver for device memory.
    pub driver_calls: u64,
    /// How often the strategy waited for the device before it reused or moved memory. `None` if the strategy's waits
    /// cannot be counted: in models, and if the driver serves every request.
    pub synchronisations: Option<u64>,
    /// Requests that failed because the device had no memory.
    pub failed: u64,
}

/// The names of the models of frameworks' allocators.
const MODELS: &[&str] = &[
    "torch",
    "torch_expandable",
    "paddle_auto_growth",
    "paddle_naive_best_fit",
];

/// The names of the strategies that can be played, in the order of the table.
pub fn strategies() -> impl Iterator<Item = &'static str> {
    let own = Strategy::ALL.iter().map(|strategy| strategy.name());
    own.chain(MODELS.iter().copied())
}

/// How many requests are played between two calls of `tick`.
const TICK: usize = 1 << 16;

/// Plays `trace` through the strategy of this name on a device of `device_memory` bytes; `None` for an unknown name.
/// `tick` is called from time to time with the number of requests since its last call.
pub fn play(trace: &Trace, name: &str, settings: &Settings, device_memory: u64, tick: &dyn Fn(u64)) -> Option<Outcome> {
    play_until(trace, name, settings, device_memory, u64::MAX, tick)
}

/// Does the same as `play`, but ends as soon as `enough_failed` requests have failed.
fn play_until(
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
            Some(policy) => Box::new(PolicyAllocator {
                policy: RefCell::new(policy),
                device: &device,
                plays_tensors: !matches!(trace.source, Source::Journal { .. }),
                waits: 0,
            }),
            None => Box::new(DriverAllocator { device: &device }),
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

/// The size of the smallest device on which the strategy of `outcome` serves every request. The size is exact to 1 MiB
/// or 0.1%, whichever is more. `outcome` is the result on a device of `device_memory` bytes.
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
        play_until(trace, outcome.name, settings, mebibytes * MIB, 1, tick).is_some_and(|outcome| outcome.failed == 0)
    };
    let live = trace.peak_live.div_ceil(MIB);
    if live >= MOST {
        return None;
    }
    // A device of `least` MiB is too small. `enough` is a first guess, which the loop below doubles until all requests
    // fit. After a success the guess is what the strategy reserved, but at most twice the live bytes: some strategies
    // reserve a share of the device. After a failure the guess is 1 MiB more than the device, but at least the live
    // bytes.
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

/// One of our policies, called as the library calls it. A tensor, or a request with a stream, is played as a call of
/// `vramshim_torch_alloc`, another request as a call of `cuMemAlloc`.
struct PolicyAllocator<'a> {
    policy: RefCell<Box<dyn Policy>>,
    device: &'a ModelDevice,
    /// Whether the requests of the trace are tensors.
    plays_tensors: bool,
    waits: u64,
}

impl PolicyAllocator<'_> {
    fn serve(&self, size: u64, stream: Option<u64>) -> Result<u64, DriverError> {
        let request = policy::Request::new(size)?.on(stream);
        let request = match stream.is_some() || self.plays_tensors {
            true => request,
            false => request.aligned_like_the_driver(),
        };
        let block = policy::serve(&self.policy, self.device, request, |_| ())?;
        Ok(block.address)
    }

    /// Waits for all work. Returns whether any memory was dirty.
    fn wait(&self) -> bool {
        let due = self.policy.with_policy(|policy| {
            let ticket = policy.begin_wait();
            let waits = ticket.is_some();
            ticket.into_iter().for_each(|ticket| policy.end_wait(ticket));
            Ok((waits, Due::next(&self.policy, policy, false)))
        });
        let (waits, due) = due.unwrap_or((false, None));
        policy::work_off(&self.policy, self.device, due);
        waits
    }

    /// Waits for all work, and gives back what is idle. Returns whether either can have helped.
    fn make_room(&mut self) -> bool {
        let waited = self.wait();
        self.waits += u64::from(waited);
        policy::release_idle(&self.policy, self.device) > 0 || waited
    }
}

impl Allocator for PolicyAllocator<'_> {
    fn allocate(&mut self, size: u64, stream: Option<u64>) -> Result<u64, DriverError> {
        self.device.requested();
        match self.serve(size, stream) {
            Err(DriverError::OUT_OF_MEMORY) if self.make_room() => self.serve(size, stream),
            result => result,
        }
    }

    fn free(&mut self, handle: u64, stream: Option<u64>) {
        let used_by = match stream.as_slice() {
            [] => UsedBy::Awaited,
            streams => UsedBy::Streams(streams),
        };
        policy::free(&self.policy, self.device, handle, used_by);
        if used_by == UsedBy::Awaited {
            // Every strategy waits here, and so does the driver, so this wait does not count.
            self.wait();
        }
    }

    fn synchronisations(&self) -> Option<u64> {
        Some(self.waits)
    }
}

/// Gives every request to the model device, as passthrough does.
struct DriverAllocator<'a> {
    device: &'a ModelDevice,
}

impl Allocator for DriverAllocator<'_> {
    fn allocate(&mut self, size: u64, _stream: Option<u64>) -> Result<u64, DriverError> {
        self.device.allocate(size)
    }

    fn free(&mut self, handle: u64, _stream: Option<u64>) {
        // Cannot fail, because the handle is a segment of the model device.
        let _ = self.device.give_back(handle);
    }
}
