//! Replays the events of one journal into an account: who holds how much of what, now and at the worst moment.
//!
//! The rules are the ledger's own, so that replaying a whole journal gives the totals the library had at its end. An
//! event that cannot be true (a free of something unknown, two blocks in one place) is counted as an anomaly; the
//! account goes on.

use std::collections::BTreeMap;

use base::api::{Api, Class, ClassCode};
use base::cuda::HOST_DEVICE;
use journal::format::{Allocation, Event, Record};

use super::measured::{Ledger, Measurements};
use super::slack::Slack;
use super::space::Space;

/// A number of bytes and the most it ever was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub current: u64,
    pub peak: u64,
}

impl Level {
    fn add(&mut self, bytes: u64) {
        self.current = self.current.saturating_add(bytes);
        self.peak = self.peak.max(self.current);
    }

    fn subtract(&mut self, bytes: u64) {
        self.current = self.current.saturating_sub(bytes);
    }

    /// Moves by the difference of two readings of one quantity.
    fn change(&mut self, before: u64, now: u64) {
        self.add(now.saturating_sub(before));
        self.subtract(before.saturating_sub(now));
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub requested: Level,
    pub allocated: Level,
    pub reserved: Level,
    /// Allocations made in all, and live now.
    pub count: u64,
    pub live: u64,
    /// Bytes of all that were made.
    pub bytes: u64,
}

impl Totals {
    fn add(&mut self, live: &Live) {
        self.requested.add(live.size);
        self.allocated.add(live.allocated);
        self.reserved.add(live.reserved);
        self.count += 1;
        self.live += 1;
        self.bytes = self.bytes.saturating_add(live.size);
    }

    fn subtract(&mut self, live: &Live) {
        self.requested.subtract(live.size);
        self.allocated.subtract(live.allocated);
        self.reserved.subtract(live.reserved);
        self.live = self.live.saturating_sub(1);
    }

    /// The share of what was taken that was put to use: peak allocated of peak reserved.
    pub fn utilisation(&self) -> Option<f64> {
        (self.reserved.peak > 0).then(|| self.allocated.peak as f64 / self.reserved.peak as f64)
    }
}

/// The memory of one device, or of the host.
#[derive(Default)]
pub struct DeviceAccount {
    /// Every class that is memory of this device together.
    pub all: Totals,
    /// By class number.
    pub classes: BTreeMap<u8, Totals>,
    /// Free room inside a policy's segments.
    pub space: Space,
    /// What the driver's pages can hold beyond what was obtained.
    pub slack: Slack,
    /// What others said of the device.
    pub measurements: Measurements,
    /// Free inside when reserved stood at its peak and the least of it was free.
    pub at_peak: Free,
    pub segments_obtained: u64,
    pub segments_returned: u64,
    /// How often a policy unmapped memory and mapped it elsewhere, and how much; each counts as returned and obtained
    /// above, too.
    pub remaps: u64,
    pub remapped: u64,
    pub failures: u64,
    /// What the driver's pools held last, by class number: reserved, used by graphs.
    pools: BTreeMap<u8, (u64, u64)>,
}

/// Free bytes and the largest piece of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    pub bytes: u64,
    pub largest: u64,
}

impl Free {
    /// How much of the free memory lies outside its largest piece: 0 for one piece, towards 1 for dust.
    pub fn fragmentation(self) -> f64 {
        if self.bytes == 0 {
            0.0
        } else {
            1.0 - self.largest as f64 / self.bytes as f64
        }
    }
}

impl DeviceAccount {
    pub fn free(&self) -> Free {
        Free {
            bytes: self.space.free(),
            largest: self.space.largest(),
        }
    }

    /// An allocation that was obtained from the layer below, by itself, comes or goes.
    fn obtained(&mut self, live: &Live, comes: bool) {
        let counts = live.reserved > 0 && Class::from_number(live.class).is_some_and(Class::is_device_memory);
        let (slack, bytes) = (&mut self.slack, live.reserved);
        match NameSpace::of(live.class) {
            _ if !counts => {}
            NameSpace::Object if comes => slack.add_object(bytes),
            NameSpace::Object => slack.remove_object(bytes),
            NameSpace::Address if comes => slack.add(live.address, bytes),
            NameSpace::Address => slack.remove(live.address, bytes),
            // Physical memory is obtained in whole granules.
            _ => {}
        }
    }

    /// Changes a class and, if its bytes count here, the device's totals.
    fn each(&mut self, device: i16, class: u8, change: impl Fn(&mut Totals)) {
        change(self.classes.entry(class).or_default());
        let counts = Class::from_number(class).is_some_and(|class| {
            if device == HOST_DEVICE {
                !matches!(class, Class::Imported | Class::AddressRange)
            } else {
                class.is_device_memory()
            }
        });
        if counts {
            change(&mut self.all);
        }
    }

    /// Called after every event of this device, with what the peak was before it.
    fn note_peak(&mut self, peak_before: u64) {
        let reserved = self.all.reserved;
        let free = self.free();
        let higher = reserved.peak > peak_before;
        if higher || (reserved.current == reserved.peak && free.bytes < self.at_peak.bytes) {
            self.at_peak = free;
        }
    }
}

/// One allocation that is live.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub address: u64,
    pub size: u64,
    pub allocated: u64,
    pub reserved: u64,
    pub api: u16,
    pub class: u8,
    pub device: i16,
    pub tid: u32,
    /// As in the record; 0 where the request names none.
    pub stream: u8,
    pub time_ns: u64,
    /// Whether a policy's segment holds it.
    in_segment: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ApiTotals {
    pub calls: u64,
    pub failures: u64,
    /// Bytes asked for (or given back), failures left out.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SizeTotals {
    pub count: u64,
    pub bytes: u64,
    pub live: u64,
    pub live_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Failure {
    pub count: u64,
    /// Of these, how many a limit of ours refused.
    pub by_limit: u64,
    pub last_size: u64,
    pub last_device: i16,
    pub last_ns: u64,
}

/// Things that cannot be, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    pub unknown_free: u64,
    pub same_address: u64,
    pub overlap: u64,
    pub segment: u64,
    pub unknown_kind: u64,
    pub unknown_class: u64,
}

impl Anomalies {
    pub fn total(&self) -> u64 {
        let Self {
            unknown_free,
            same_address,
            overlap,
            segment,
            unknown_kind,
            unknown_class,
        } = *self;
        unknown_free + same_address + overlap + segment + unknown_kind + unknown_class
    }
}

/// Names that may coincide without being the same thing live in different spaces, as in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameSpace {
    Address,
    Registered,
    Range,
    Physical,
    Object,
    Imported,
}

impl NameSpace {
    fn of(class: u8) -> Self {
        match Class::from_number(class) {
            Some(Class::HostRegistered) => Self::Registered,
            Some(Class::AddressRange) => Self::Range,
            Some(Class::Vmm) => Self::Physical,
            Some(Class::Array | Class::Mipmap) => Self::Object,
            Some(Class::Imported) => Self::Imported,
            _ => Self::Address,
        }
    }
}

#[derive(Default)]
pub struct Account {
    pub events: u64,
    pub last_ns: u64,
    /// By ordinal; `HOST_DEVICE` is the host.
    pub devices: BTreeMap<i16, DeviceAccount>,
    /// By `Api` number.
    pub apis: BTreeMap<u16, ApiTotals>,
    /// Requests for device memory by the power of two at or below their size (the exponent; 0 for 0 and 1 bytes).
    pub sizes: BTreeMap<u32, SizeTotals>,
    /// By `Api` number and result.
    pub failures: BTreeMap<(u16, i32), Failure>,
    pub anomalies: Anomalies,
    live: BTreeMap<(NameSpace, u64), Live>,
}

impl Account {
    pub fn apply(&mut self, record: &Record) {
        // A measurement is not a call of the job.
        self.events += u64::from(!matches!(record.event, Event::Measured { .. }));
        self.last_ns = self.last_ns.max(record.time_ns);
        let device = account_of(record);
        let peak_before = self.devices.entry(device).or_default().all.reserved.peak;
        match record.event {
            Event::Alloc(allocation) => self.alloc(device, record, &allocation),
            Event::Free { allocation, .. } => self.free(record, &allocation),
            Event::AllocFailed {
                requested,
                result,
                over_limit,
                ..
            } => self.failed(device, record, requested, result, over_limit),
            Event::FreeFailed { segment, result, .. } => {
                self.failed(device, record, segment.unwrap_or(0), result, false);
            }
            Event::SegmentAlloc { address, size, moved } => self.segment_obtained(device, address, size, moved),
            Event::SegmentFree { address, size, .. } => self.segment_returned(device, address, size),
            Event::PoolReserved { class, reserved, used } => self.pool(device, class, reserved, used),
            Event::Measured { .. } => {
                let account = self.device(device);
                let ledger = Ledger::of(account);
                account.measurements.add(record, ledger);
            }
            Event::ContextDestroyed { .. } => self.device(device).measurements.context_went(),
            Event::Map { .. } | Event::Unmap { .. } => {}
            Event::Unknown { .. } => self.anomalies.unknown_kind += 1,
        }
        self.device(device).note_peak(peak_before);
    }

    /// Allocations that are live, largest first.
    pub fn live(&self) -> Vec<Live> {
        let mut live: Vec<Live> = self.live.values().copied().collect();
        live.sort_by_key(|live| (std::cmp::Reverse(live.size), live.address));
        live
    }

    /// Failed calls of every kind.
    pub fn failed_calls(&self) -> u64 {
        self.failures.values().map(|failure| failure.count).sum()
    }

    fn device(&mut self, device: i16) -> &mut DeviceAccount {
        self.devices.entry(device).or_default()
    }

    fn call(&mut self, record: &Record, bytes: u64) {
        let api = self.apis.entry(record.api.number()).or_default();
        api.calls += 1;
        api.bytes = api.bytes.saturating_add(bytes);
    }

    fn alloc(&mut self, device: i16, record: &Record, allocation: &Allocation) {
        let &Allocation { class, address, .. } = allocation;
        self.call(record, allocation.requested);
        if class.known().is_none() {
            self.anomalies.unknown_class += 1;
        }
        let key = (NameSpace::of(class.number()), address);
        if let Some(stale) = self.live.remove(&key) {
            // The name was given out again, so the old allocation is gone, whoever freed it.
            self.anomalies.same_address += 1;
            self.forget(&stale);
        }
        let may_lie_in_segment = allocation.reserved.is_none() && key.0 == NameSpace::Address;
        let live = Live {
            address,
            size: allocation.requested,
            allocated: allocation.allocated,
            reserved: allocation.reserved.unwrap_or(0),
            api: record.api.number(),
            class: class.number(),
            device,
            tid: record.tid,
            stream: allocation.stream,
            time_ns: record.time_ns,
            in_segment: may_lie_in_segment && self.device(device).space.holds(address),
        };
        let overlaps = if live.in_segment {
            self.device(device).space.occupy(live.address, live.allocated).is_err()
        } else {
            key.0 == NameSpace::Address && self.touches_another(&live)
        };
        self.anomalies.overlap += u64::from(overlaps);
        let account = self.device(device);
        account.each(device, live.class, |totals| totals.add(&live));
        account.obtained(&live, true);
        if let Some(sizes) = self.size_class(&live) {
            sizes.count += 1;
            sizes.bytes = sizes.bytes.saturating_add(live.size);
            sizes.live += 1;
            sizes.live_bytes = sizes.live_bytes.saturating_add(live.size);
        }
        // One that overlaps was not cut out of the free room, so it must not be put back there.
        self.live.insert(
            key,
            Live {
                in_segment: live.in_segment && !overlaps,
                ..live
            },
        );
    }

    fn free(&mut self, record: &Record, freed: &Allocation) {
        self.call(record, freed.requested);
        match self.live.remove(&(NameSpace::of(freed.class.number()), freed.address)) {
            Some(live) => self.forget(&live),
            None => self.anomalies.unknown_free += 1,
        }
    }

    fn forget(&mut self, live: &Live) {
        let device = self.device(live.device);
        device.each(live.device, live.class, |totals| totals.subtract(live));
        device.obtained(live, false);
        if live.in_segment {
            // Fails only if its segment went first, as it may when a context is destroyed.
            let _ = device.space.release(live.address, live.allocated);
        }
        if let Some(sizes) = self.size_class(live) {
            sizes.live = sizes.live.saturating_sub(1);
            sizes.live_bytes = sizes.live_bytes.saturating_sub(live.size);
        }
    }

    /// Where an allocation counts by its size, if it is memory of a device.
    fn size_class(&mut self, live: &Live) -> Option<&mut SizeTotals> {
        let counts = live.device != HOST_DEVICE && Class::from_number(live.class)?.is_device_memory();
        counts.then(|| self.sizes.entry(live.size.checked_ilog2().unwrap_or(0)).or_default())
    }

    /// Whether a live allocation reaches into this one, by the bytes that were asked for: rounding may be only on paper.
    fn touches_another(&self, live: &Live) -> bool {
        let key = |address| (NameSpace::Address, address);
        let before = self.live.range(key(0)..key(live.address)).next_back();
        let after = self.live.range(key(live.address)..=key(u64::MAX)).next();
        before.is_some_and(|(_, other)| other.address.saturating_add(other.size) > live.address)
            || after.is_some_and(|(_, other)| live.address.saturating_add(live.size) > other.address)
    }

    fn failed(&mut self, device: i16, record: &Record, size: u64, result: i32, over_limit: bool) {
        let number = record.api.number();
        let api = self.apis.entry(number).or_default();
        api.calls += 1;
        api.failures += 1;
        self.device(device).failures += 1;
        let failure = self.failures.entry((number, result)).or_default();
        failure.count += 1;
        failure.by_limit += u64::from(over_limit);
        failure.last_size = size;
        failure.last_device = record.device;
        failure.last_ns = record.time_ns;
    }

    fn segment_obtained(&mut self, device: i16, address: u64, size: u64, moved: bool) {
        let account = self.device(device);
        account.segments_obtained += 1;
        // A move also has one `SegmentFree` or several, so it is counted only here, where the memory arrives.
        if moved {
            account.remaps += 1;
            account.remapped = account.remapped.saturating_add(size);
        }
        let added = account.space.add_segment(address, size);
        account.slack.add(address, added);
        account.each(device, Class::Linear.number(), |totals| totals.reserved.add(added));
        self.anomalies.segment += u64::from(added != size);
    }

    fn segment_returned(&mut self, device: i16, address: u64, size: u64) {
        let account = self.device(device);
        account.segments_returned += 1;
        // Only what was there can go.
        let removed = account.space.remove_segment(address, size);
        account.slack.remove(address, removed);
        account.each(device, Class::Linear.number(), |totals| {
            totals.reserved.subtract(removed)
        });
        self.anomalies.segment += u64::from(removed != size);
    }

    fn pool(&mut self, device: i16, class: ClassCode, size: u64, used: u64) {
        let used = if class == Class::Graph.into() { used } else { 0 };
        let class = class.number();
        let account = self.device(device);
        let (size_before, used_before) = account.pools.insert(class, (size, used)).unwrap_or_default();
        account.each(device, class, |totals| {
            totals.reserved.change(size_before, size);
            totals.requested.change(used_before, used);
            totals.allocated.change(used_before, used);
        });
    }
}

/// The account a record belongs to: host memory has its own, whatever device was current.
fn account_of(record: &Record) -> i16 {
    let class = match record.event {
        Event::Alloc(allocation) | Event::Free { allocation, .. } => allocation.class,
        Event::AllocFailed { class, .. } | Event::PoolReserved { class, .. } => class,
        _ => return record.device,
    };
    match class.known() {
        Some(Class::Host | Class::HostRegistered) => HOST_DEVICE,
        _ => record.device,
    }
}

/// The API's name, or its number where this version knows no name for it.
pub fn api_name(api: u16) -> String {
    Api::from_number(api).map_or_else(|| format!("api {api}"), |api| api.name().to_owned())
}

pub fn class_name(class: u8) -> String {
    Class::from_number(class).map_or_else(|| format!("class {class}"), |class| class.name().to_owned())
}

#[cfg(test)]
mod tests;
