//! Plays a trace through one strategy, and searches for the smallest device on which the strategy serves every request.

use std::cell::RefCell;
use std::collections::HashMap;

use base::cuda::DriverError;
use foldhash::fast::RandomState;
use journal::format::LARGEST_RANGE;
use policy::device_memory::DeviceMemory;
use policy::{Due, Holder, Policy, Settings, Strategy, UsedBy};
use prices::{Bill, Prices};

use super::device::{Doing, ModelDevice};
use super::paddle;
use super::requests::{Action, Allocator, LastUse, Request, TorchSettings, Trace, Way};
use super::torch::CachingAllocator;

/// What a trace is played on, and how often.
#[derive(Clone, Debug)]
pub struct Setup {
    pub settings: Settings,
    /// The bytes of the device.
    pub device_memory: u64,
    pub prices: Prices,
    /// How far the host runs ahead of the GPU.
    pub lag_ns: u64,
    /// How often the trace is played, at least once. Between two repetitions all memory is freed.
    pub repetitions: u64,
}

impl Setup {
    /// Played once on a device of so many bytes, by the built-in prices. The GPU is never behind.
    pub fn once(settings: Settings, device_memory: u64) -> Setup {
        Setup {
            settings,
            device_memory,
            prices: Prices::default(),
            lag_ns: 0,
            repetitions: 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub name: &'static str,
    /// In bytes.
    pub peak_reserved: u64,
    /// The calls and waits of each repetition. The frees between two repetitions belong to the second one.
    pub repetitions: Vec<Bill>,
    /// Requests that failed because the device had no memory.
    pub failed: u64,
}

impl Outcome {
    pub fn bill(&self) -> Bill {
        let mut sum = Bill::default();
        self.repetitions.iter().for_each(|&bill| sum += bill);
        sum
    }

    /// Peak live / peak reserved. `None` if requests failed, because peak live contains the failed requests, too.
    pub fn utilisation(&self, trace: &Trace) -> Option<f64> {
        let utilisation = trace.peak_live as f64 / self.peak_reserved.max(1) as f64;
        (self.failed == 0).then_some(utilisation)
    }

    /// What calls and waits take, as a share of the time of the trace, over all repetitions.
    pub fn share_of_trace(&self, trace: &Trace) -> Option<f64> {
        let duration_ns = trace.duration_ns? as f64 * self.repetitions.len() as f64;
        Some(self.bill().total_ns() as f64 / duration_ns)
    }
}

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

/// Plays `trace` through the strategy of this name; `None` for an unknown name, or if nothing is known of it
/// (`Trace::not_known`).
pub fn play(trace: &Trace, name: &str, setup: &Setup) -> Option<Outcome> {
    play_until(trace, name, setup, u64::MAX)
}

/// Does the same as `play`, but ends as soon as `enough_failed` requests have failed.
fn play_until(trace: &Trace, name: &str, setup: &Setup, enough_failed: u64) -> Option<Outcome> {
    let name = strategies().find(|known| *known == name && trace.not_known(name).is_none())?;
    let device = ModelDevice::new(setup.device_memory, setup.prices, setup.lag_ns);
    let mut allocator = allocator(name, &device, &setup.settings, &trace.torch)?;
    let (repetitions, failed) = drive(
        &trace.requests,
        setup.repetitions,
        &device,
        &mut *allocator,
        enough_failed,
    );
    Some(Outcome {
        name,
        peak_reserved: device.peak(),
        repetitions,
        failed,
    })
}

/// What serves the requests of the strategy of this name on `device`; `None` for an unknown name.
pub fn allocator<'a>(
    name: &str,
    device: &'a ModelDevice,
    settings: &Settings,
    torch: &'a TorchSettings,
) -> Option<Box<dyn Allocator + 'a>> {
    Some(match name {
        "torch" => Box::new(CachingAllocator::new(device, false, torch)),
        "torch_expandable" => Box::new(CachingAllocator::new(device, true, torch)),
        "paddle_auto_growth" => Box::new(paddle::AutoGrowth::new(device, settings)),
        "paddle_naive_best_fit" => Box::new(paddle::NaiveBestFit::new(device, settings)),
        _ => match Strategy::parse(name)?.create(settings) {
            Some(policy) => Box::new(PolicyAllocator {
                policy: RefCell::new(policy),
                device,
            }),
            None => Box::new(DriverAllocator { device }),
        },
    })
}

/// The size of the smallest device on which the strategy of `outcome` serves every request. The size is exact to 1 MiB
/// or 0.1%, whichever is more.
pub fn smallest_device(trace: &Trace, outcome: &Outcome, setup: &Setup) -> Option<u64> {
    const MIB: u64 = 1 << 20;
    // No device has more than a process has addresses.
    const MOST: u64 = LARGEST_RANGE / MIB;
    let fits = |mebibytes: u64| {
        let setup = Setup {
            device_memory: mebibytes * MIB,
            ..setup.clone()
        };
        play_until(trace, outcome.name, &setup, 1).is_some_and(|outcome| outcome.failed == 0)
    };
    let live = trace.peak_live.div_ceil(MIB);
    if live >= MOST {
        return None;
    }
    // A device of `least` MiB is too small, one of `enough` serves all.
    let (mut least, mut enough) = (live.saturating_sub(1), live.max(1));
    while !fits(enough) {
        least = enough;
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

/// Plays requests several times. Returns the bill of each repetition, and how many requests failed.
pub(super) fn drive(
    requests: &[Request],
    repetitions: u64,
    device: &ModelDevice,
    allocator: &mut dyn Allocator,
    enough_failed: u64,
) -> (Vec<Bill>, u64) {
    // The next repetition begins one mean step after the last request.
    let last_ns = requests.last().map_or(0, |request| request.at_ns);
    let period_ns = last_ns.saturating_add(last_ns / requests.len().max(1) as u64);
    let mut live: HashMap<u64, (u64, Way), RandomState> = HashMap::default();
    let (mut bills, mut failed) = (Vec::new(), 0);
    for repetition in 0..repetitions {
        let before = device.bill();
        let start_ns = repetition.saturating_mul(period_ns);
        // What the trace never frees was allocated by the repetition before.
        let mut left: Vec<_> = live.drain().collect();
        left.sort_unstable_by_key(|&(id, _)| id);
        for (_, (handle, way)) in left {
            device.requested(Doing::Frees, start_ns);
            allocator.free(handle, way.used_alone());
        }
        for request in requests {
            let now_ns = start_ns.saturating_add(request.at_ns);
            match request.action {
                Action::Allocate { size, way } => {
                    device.requested(Doing::Allocates, now_ns);
                    match allocator.allocate(size, way) {
                        Ok(handle) => drop(live.insert(request.id, (handle, way))),
                        Err(_) => failed += 1,
                    }
                }
                Action::EmptyCache => allocator.empty_cache(),
                Action::Free(last_use) => {
                    if let Some((handle, _)) = live.remove(&request.id) {
                        device.requested(Doing::Frees, now_ns);
                        allocator.free(handle, last_use);
                    }
                }
            }
            if failed >= enough_failed {
                return (bills, failed);
            }
        }
        bills.push(device.bill() - before);
    }
    (bills, failed)
}

/// One of our policies, called as the library calls it: a tensor as a call of `vramshim_torch_alloc`, any other
/// request as a call of `cuMemAlloc`.
struct PolicyAllocator<'a> {
    policy: RefCell<Box<Policy>>,
    device: &'a ModelDevice,
}

impl PolicyAllocator<'_> {
    fn serve(&self, size: u64, way: Way) -> Result<u64, DriverError> {
        let request = policy::Request::new(size)?;
        let request = match way {
            Way::Driver => request.aligned_like_the_driver(),
            Way::Tensor(stream) => request.on(stream),
        };
        let block = policy::serve(&self.policy, self.device, request, |_| ())?;
        Ok(block.address)
    }

    /// Waits for all work if any memory is dirty. Returns whether that was so.
    fn wait(&self) -> bool {
        let due = self.policy.with_policy(|policy| {
            let ticket = policy.begin_wait();
            let waits = ticket.is_some();
            if let Some(ticket) = ticket {
                self.device.wait();
                policy.end_wait(ticket);
            }
            Ok((waits, Due::next(&self.policy, policy, policy::After::Free)))
        });
        let (waits, due) = due.unwrap_or((false, None));
        policy::work_off(&self.policy, self.device, due);
        waits
    }

    /// Waits for all work, and gives back what is idle, as far as it is wanted. Returns whether either can have helped.
    fn make_room(&mut self, wanted: u64) -> bool {
        let waited = self.wait();
        policy::release_idle(&self.policy, self.device, wanted) > 0 || waited
    }
}

impl Allocator for PolicyAllocator<'_> {
    fn allocate(&mut self, size: u64, way: Way) -> Result<u64, DriverError> {
        let mut result = self.serve(size, way);
        for wanted in [size, u64::MAX] {
            if result == Err(DriverError::OUT_OF_MEMORY) && self.make_room(wanted) {
                result = self.serve(size, way);
            }
        }
        result
    }

    fn free(&mut self, handle: u64, last_use: LastUse) {
        let streams;
        let used_by = match last_use {
            LastUse::Awaited => UsedBy::Awaited,
            LastUse::Stream(stream) => {
                streams = [stream; 2];
                UsedBy::Streams(&streams[..1])
            }
            LastUse::TwoStreams(one, other) => {
                streams = [one.min(other), one.max(other)];
                UsedBy::Streams(&streams)
            }
            LastUse::Unknown => UsedBy::Unknown,
        };
        policy::free(&self.policy, self.device, handle, used_by);
        if used_by == UsedBy::Awaited {
            self.wait();
        }
    }

    fn empty_cache(&mut self) {
        self.make_room(u64::MAX);
    }
}

/// Gives every request to the model device, as passthrough does.
struct DriverAllocator<'a> {
    device: &'a ModelDevice,
}

impl Allocator for DriverAllocator<'_> {
    fn allocate(&mut self, size: u64, _way: Way) -> Result<u64, DriverError> {
        self.device.allocate(size)
    }

    fn free(&mut self, handle: u64, _last_use: LastUse) {
        // Cannot fail, because the handle is a segment of the model device.
        let _ = self.device.give_back(handle);
    }
}
