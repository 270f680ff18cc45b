//! What the library answers about itself, and what it can be told (`shim.h`). This file has totals, limits, and everything
//! as JSON. `names` has figures by name, `commands` what the job can be told while it runs, and `socket` the way for
//! `vramshim ctl`.

pub mod commands;
pub mod names;
pub mod socket;

use super::Engine;
use super::state::totals::{Reading, Readings};
use base::api::{Api, Class};
use base::cancellation::Uncancelled;
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
pub use base::stats::Stats;
use quota::Scope;

/// `struct vramshim_limit`. Bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub limit: u64,
    pub used: u64,
    pub available: u64,
    pub context: u64,
    /// 1 if the limit holds for a group of processes.
    pub group: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Limit {
            limit: 0,
            used: 0,
            available: u64::MAX,
            context: 0,
            group: 0,
        }
    }
}

impl From<Readings> for Stats {
    fn from(readings: Readings) -> Self {
        Stats {
            requested: readings.requested.current,
            requested_peak: readings.requested.peak,
            allocated: readings.allocated.current,
            allocated_peak: readings.allocated.peak,
            reserved: readings.reserved.current,
            reserved_peak: readings.reserved.peak,
            live: readings.live.current,
            failures: readings.failures,
            ..Stats::default()
        }
    }
}

impl Engine {
    /// Asks the driver what its own pools and the launched graphs hold now.
    fn refresh(&'static self) {
        self.refresh_pools(Api::Policy);
        for device in self.state.measurements.used_devices() {
            self.refresh_graphs(device, Api::Policy);
        }
    }

    /// Totals of a device, or of one class of memory on it. `None` for a device number out of range.
    pub fn stats(&'static self, device: i32, class: Option<Class>) -> Option<Stats> {
        let device = i16::try_from(device)
            .ok()
            .filter(|&device| device == HOST_DEVICE || self.state.measurements.is_present(device))?;
        self.refresh();
        let stats = Stats::from(self.state.ledger.readings(device, class));
        if class.is_some() {
            return Some(stats);
        }
        let (free_inside, largest_free_block) = self.pools.free_inside(device);
        Some(Stats {
            free_inside,
            largest_free_block,
            ..stats
        })
    }

    /// The limit of a device. `None` if the job has no such device.
    pub fn limit(&self, device: i32) -> Option<Limit> {
        let device = i16::try_from(device)
            .ok()
            .filter(|&device| self.state.measurements.is_present(device))?;
        let quota = if self.state.measurements.is_used(device) {
            self.state.limits.of(device)
        } else {
            None
        };
        let Some(quota) = quota else {
            return Some(Limit::default());
        };
        Some(Limit {
            limit: quota.limit.unwrap_or(0),
            used: quota.used(),
            available: quota.available().unwrap_or(u64::MAX),
            context: quota.context_bytes(),
            group: u64::from(quota.scope == Scope::Group),
        })
    }

    /// Gives memory of a device without live blocks back to the next layer; returns bytes.
    pub fn release_idle(&self, device: i16) -> u64 {
        let _uncancelled = Uncancelled::begin();
        self.pools.release_idle(device)
    }

    /// Gives memory without live blocks back, of all devices that the job has used.
    pub fn release_idle_everywhere(&self) {
        for device in self.state.measurements.used_devices() {
            self.release_idle(device);
        }
    }

    /// What the process holds of the host's memory, and the surges of each device that had one, as members of a JSON object.
    fn host_and_surges_as_json(&self) -> String {
        let host = self.state.host_memory().map_or_else(
            || "null".to_owned(),
            |host| {
                let (resident, pinned) = (host.resident, host.pinned);
                format!("{{\"resident\":{resident},\"pinned\":{pinned}}}")
            },
        );
        let counts = (HOST_DEVICE..MAX_DEVICES as i16).map(|device| (device, self.state.surges.count(device)));
        let surges = counts.filter(|&(_, count)| count > 0);
        let surges: Vec<String> = surges
            .map(|(device, count)| format!("{{\"device\":{device},\"count\":{count}}}"))
            .collect();
        format!("\"host\":{host},\"surges\":[{}]", surges.join(","))
    }

    /// The totals of every class that was ever used, on every device and the host, as JSON.
    pub fn totals_as_json(&'static self) -> String {
        self.refresh();
        let reading = |one: Reading| format!("{{\"current\":{},\"peak\":{}}}", one.current, one.peak);
        let mut totals = Vec::new();
        for device in HOST_DEVICE..MAX_DEVICES as i16 {
            for &class in Class::ALL {
                let one = self.state.ledger.readings(device, Some(class));
                if !one.was_used() {
                    continue;
                }
                totals.push(format!(
                    "{{\"device\":{device},\"class\":\"{}\",\"requested\":{},\"allocated\":{},\"reserved\":{},\
                     \"count\":{},\"failures\":{}}}",
                    class.name(),
                    reading(one.requested),
                    reading(one.allocated),
                    reading(one.reserved),
                    one.live.current,
                    one.failures,
                ));
            }
        }
        format!(
            "{{\"pid\":{},\"strategy\":\"{}\",\"events_lost\":{},{},\"totals\":[{}]}}",
            self.pid,
            self.strategy.name(),
            self.state.records.lost(),
            self.host_and_surges_as_json(),
            totals.join(","),
        )
    }
}
