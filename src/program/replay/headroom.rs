//! What a strategy takes of the driver on devices that are little larger than the trace's live peak, and how much of the
//! memory that is free there one further request gets.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use journal::format::LARGEST_RANGE;

use super::device::{Doing, ModelDevice};
use super::play::{Setup, allocator, drive, play};
use super::requests::{Action, Request};
use super::trace::Trace;

/// The memory of each device in percent of the trace's live peak.
const DEVICES_PERCENT: [u64; 4] = [400, 130, 110, 103];
/// The device on which one further request is tried.
const TRIED_PERCENT: u64 = 130;
/// What a device has at least beyond the live peak, in bytes.
const LEAST_FREE: u64 = 4 << 20;
/// After more requests and frees no further request is tried, because each try plays them again.
const MOST_PLAYED: usize = 1_000_000;

/// The result on one device.
pub struct OnDevice {
    /// The memory of the device in percent of the trace's live peak. A small trace has more: live peak + 4 MiB.
    pub percent: u64,
    /// The memory of the device in bytes.
    pub device_memory: u64,
    /// The time of calls and waits in all repetitions.
    pub driver_ns: u64,
    /// Requests that failed because the device had no memory.
    pub failed: u64,
}

/// The results of one strategy.
pub struct Headroom {
    pub devices: Vec<OnDevice>,
    /// How much one request gets of the memory that is free on the device of `TRIED_PERCENT`, in whole percents: after one
    /// repetition, or when live memory first fell to half of its peak after the peak; the smaller one. `None` if a
    /// request of the trace fails there, or if the trace is too long.
    pub one_request_percent: Option<u64>,
}

/// Plays `trace` through the strategy of this name on each device; `None` for an unknown name.
pub fn headroom(trace: &Trace, name: &str, setup: &Setup) -> Option<Headroom> {
    let on = |percent| {
        let setup = on_device(trace, percent, setup);
        let outcome = play(trace, name, &setup)?;
        Some(OnDevice {
            percent,
            device_memory: setup.device_memory,
            driver_ns: outcome.bill().total_ns(),
            failed: outcome.failed,
        })
    };
    let devices: Vec<OnDevice> = DEVICES_PERCENT.into_iter().map(on).collect::<Option<_>>()?;
    let is_tried = |device: &OnDevice| device.percent == TRIED_PERCENT && device.failed == 0;
    let is_tried = devices.iter().any(is_tried) && trace.requests.len() <= MOST_PLAYED;
    let one_request = || one_request_percent(trace, name, &on_device(trace, TRIED_PERCENT, setup));
    Some(Headroom {
        devices,
        one_request_percent: is_tried.then(one_request).flatten(),
    })
}

fn on_device(trace: &Trace, percent: u64, setup: &Setup) -> Setup {
    let share = u128::from(trace.peak_live) * u128::from(percent) / 100;
    let least = u128::from(trace.peak_live) + u128::from(LEAST_FREE);
    Setup {
        device_memory: share.max(least).min(u128::from(LARGEST_RANGE)) as u64,
        ..setup.clone()
    }
}

/// Searches by bisection, as if a request were served whenever a larger one is. Each try plays the requests anew, because a
/// try changes what the strategy holds.
fn one_request_percent(trace: &Trace, name: &str, setup: &Setup) -> Option<u64> {
    let requests = &trace.requests;
    let way = requests.iter().rev().find_map(|request| match request.action {
        Action::Allocate { way, .. } => Some(way),
        Action::Free(_) => None,
    })?;
    let is_served = |played: &[Request], live: u64, percent: u64| {
        let device = ModelDevice::new(setup.device_memory, setup.prices, setup.lag_ns);
        let mut allocator = allocator(name, &device, &setup.settings, &trace.torch)?;
        drive(played, 1, &device, &mut *allocator, u64::MAX);
        device.requested(Doing::Allocates, played.last()?.at_ns);
        let size = u128::from(setup.device_memory - live) * u128::from(percent) / 100;
        allocator.allocate(size as u64, way).ok()
    };
    let mut least = 100;
    for (count, live) in moments(requests) {
        let is_served = |percent| is_served(&requests[..count], live, percent).is_some();
        if is_served(least) {
            continue;
        }
        let (mut served, mut refused) = (0, least);
        while refused - served > 1 {
            let middle = (served + refused) / 2;
            if is_served(middle) {
                served = middle;
            } else {
                refused = middle;
            }
        }
        least = served;
    }
    Some(least)
}

/// The moments at which a further request is tried: after how many requests and frees, and the live bytes.
fn moments(requests: &[Request]) -> Vec<(usize, u64)> {
    let mut sizes: HashMap<u64, u64, RandomState> = HashMap::default();
    let (mut live, mut peak, mut half) = (0, 0, None);
    for (index, request) in requests.iter().enumerate() {
        match request.action {
            Action::Allocate { size, .. } => {
                sizes.insert(request.id, size);
                live += size;
            }
            Action::Free(_) => live -= sizes.remove(&request.id).unwrap_or(0),
        }
        if live > peak {
            (peak, half) = (live, None);
        } else if half.is_none() && live <= peak / 2 {
            half = Some((index + 1, live));
        }
    }
    half.into_iter().chain([(requests.len(), live)]).collect()
}
