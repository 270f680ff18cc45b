//! What the library knows about the process: types with methods that know no call and no pool.
//!
//! `State` holds one of each. Pools and calls share it for the life of the process.

pub mod allocation;
pub mod attachments;
mod book;
pub mod captures;
pub mod context_work;
pub mod failures;
mod frees_in_flight;
pub mod guards;
pub mod host;
pub mod ledger;
pub mod limits;
pub mod listed;
pub mod live_streams;
pub mod location;
pub mod measurements;
pub mod operations;
pub mod peers;
mod per_device;
pub mod records;
pub mod registrations;
mod shown;
pub mod surges;
pub mod totals;

use crate::next;
use std::sync::Mutex;

use base::api::Class;
use base::shortage::MemInfo;
use config::Config;
use quota::Quota;

use allocation::Allocation;
use attachments::Attachments;
use captures::Captures;
use failures::Failures;
use guards::Guards;
use ledger::Ledger;
use limits::{Grant, Limits};
use listed::Listed;
use live_streams::{LiveStreams, StreamNumbers};
use measurements::Measurements;
use peers::Peers;
use records::Recorder;
use registrations::Registrations;
use shown::Shown;
use surges::Surges;

pub struct State {
    pub ledger: Ledger,
    pub attachments: Attachments,
    pub captures: Captures,
    pub peers: Peers,
    pub streams: StreamNumbers,
    pub live_streams: LiveStreams,
    pub limits: Limits,
    pub listed: Mutex<Listed>,
    pub measurements: Measurements,
    pub shown: Shown,
    pub failures: Failures,
    pub guards: Guards,
    pub surges: Surges,
    pub registrations: Registrations,
    pub records: Recorder,
}

impl State {
    pub fn new(config: &Config, quota: &'static Quota, records: Recorder) -> State {
        State {
            ledger: Ledger::default(),
            attachments: Attachments::default(),
            captures: Captures::default(),
            peers: Peers::default(),
            streams: StreamNumbers::default(),
            live_streams: LiveStreams::default(),
            limits: Limits { quota },
            listed: Mutex::default(),
            measurements: Measurements::default(),
            shown: Shown::default(),
            failures: Failures::default(),
            guards: Guards::new(config.max_request, config.strategy),
            surges: Surges::new(config.surge),
            registrations: Registrations::default(),
            records,
        }
    }

    /// Bytes of a device that this process holds, as the ledger has them.
    pub fn reserved(&self, device: i16) -> u64 {
        self.ledger.readings(device, None).reserved.current
    }

    /// Bytes of linear memory of a device that were obtained from the next layer.
    pub fn linear_reserved(&self, device: i16) -> u64 {
        self.ledger.device(device).linear.read()[0].current
    }

    /// What the next layer shows of a device, as `given` has it; 0 if the device is not the current one.
    pub fn shown_of(&self, device: i16) -> MemInfo {
        let MemInfo { total, free } = next::information_here(device);
        if total > 0 {
            self.shown.saw(device, free, self.linear_reserved(device));
        }
        let free = self.given(device, free);
        MemInfo { total, free }
    }

    /// What the next layer still gives of the `free` bytes that it shows. Some layers show the same whatever was taken. Without
    /// a layer, equal figures are a coincidence: other processes gave back as much as this one took.
    pub fn given(&self, device: i16, free: u64) -> u64 {
        let of_layer = next::shows_its_own_memory();
        let given = of_layer.then(|| self.shown.left(device, free, self.linear_reserved(device)));
        given.flatten().unwrap_or(free)
    }

    /// An allocation went back to the next layer.
    pub fn refund(&self, allocation: &Allocation) {
        if allocation.class.is_device_memory() {
            self.limits.refund(allocation.device, allocation.reserved());
        }
    }

    /// The driver's own pools hold `now` bytes of a device; they held `before`. Growth is paid from `grant` first.
    pub fn driver_pools_hold(&self, device: i16, class: Class, before: u64, now: u64, grant: Option<&mut Grant>) {
        self.ledger.driver_pools_hold(device, class, before, now);
        self.limits.refund(device, before.saturating_sub(now));
        let grown = now.saturating_sub(before);
        match (grant, self.limits.of(device)) {
            (Some(grant), _) => grant.spend(grown),
            (None, Some(quota)) => quota.add(grown),
            (None, None) => {}
        }
        if grown > 0 {
            self.measurements.device_grew(device);
        }
    }
}
