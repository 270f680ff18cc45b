//! Rebuilds the library's ledger from the events of one journal: which allocations are live, and the bytes of each
//! device, API and size.
//!
//! The library's ledger follows the same rules, so a complete journal gives the totals that the library had at its end.
//! An event that contradicts earlier events (a free of an unknown address, two blocks that overlap) is counted as an
//! anomaly.

use std::collections::BTreeMap;

use base::api::{Class, ClassCode};
use base::cuda::HOST_DEVICE;
use journal::format::{Allocation, Event, Record};

use super::device_ledger::{DeviceLedger, Live, NameSpace};
use super::out_of_memory::OutOfMemories;

#[derive(Clone, Copy, Debug, Default)]
pub struct ApiTotals {
    pub calls: u64,
    pub failures: u64,
    /// Bytes requested or freed by calls that succeeded.
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
    /// The calls in `count` that our limit refused.
    pub by_limit: u64,
    pub last_size: u64,
    pub last_device: i16,
    pub last_ns: u64,
}

/// Events that contradict earlier events, by kind.
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

#[derive(Default)]
pub struct Ledger {
    pub events: u64,
    pub last_ns: u64,
    /// By device number; `HOST_DEVICE` is the host.
    pub devices: BTreeMap<i16, DeviceLedger>,
    /// By `Api` number.
    pub apis: BTreeMap<u16, ApiTotals>,
    /// Requests for device memory by size. Key 0 has the sizes 0 and 1, key 1 the sizes 2 and 3, key 2 the sizes 4 to
    /// 7.
    pub sizes: BTreeMap<u32, SizeTotals>,
    /// By `Api` number and result.
    pub failures: BTreeMap<(u16, i32), Failure>,
    pub anomalies: Anomalies,
    pub out_of_memory: OutOfMemories,
    live: BTreeMap<(NameSpace, u64), Live>,
}

impl Ledger {
    pub fn apply(&mut self, record: &Record) {
        // A measurement is no call of the job, so it does not count as an event.
        self.events += u64::from(!matches!(record.event, Event::Measured { .. }));
        self.last_ns = self.last_ns.max(record.time_ns);
        let device = device_of(record);
        let reserved = self.devices.entry(device).or_default().all.reserved;
        let peak_before = reserved.peak;
        self.out_of_memory.apply(record, reserved.current);
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
            Event::SegmentAlloc { address, size, again } => self.segment_obtained(device, address, size, again),
            Event::StitchPart { address, size, home } => self.device(device).add_part(address, size, home),
            Event::SegmentFree {
                address, size, again, ..
            } => self.segment_returned(device, address, size, again),
            Event::PoolReserved { class, reserved, used } => self.pool(device, class, reserved, used),
            Event::Measured { .. } => {
                let ledger = self.device(device);
                let balance = ledger.balance();
                ledger.measurements.add(record, balance);
                ledger.since_measured = 0;
            }
            Event::ContextDestroyed { .. } => self.device(device).measurements.context_destroyed(),
            Event::Map { .. } | Event::Unmap { .. } => {}
            Event::Unknown { .. } => self.anomalies.unknown_kind += 1,
        }
        self.device(device).note_peak(peak_before);
    }

    /// The live allocations, largest first.
    pub fn live(&self) -> Vec<Live> {
        let mut live: Vec<Live> = self.live.values().copied().collect();
        live.sort_by_key(|live| (std::cmp::Reverse(live.size), live.address));
        live
    }

    /// The number of all failed calls.
    pub fn failed_calls(&self) -> u64 {
        self.failures.values().map(|failure| failure.count).sum()
    }

    fn device(&mut self, device: i16) -> &mut DeviceLedger {
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
            // The same address was handed out again, so the earlier allocation must have been freed without a record.
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
            in_segment: may_lie_in_segment && self.device(device).holds(address),
        };
        let overlaps = if live.in_segment {
            self.device(device).occupy(address, live.allocated).is_err()
        } else {
            key.0 == NameSpace::Address && self.overlaps_another(&live)
        };
        self.anomalies.overlap += u64::from(overlaps);
        let ledger = self.device(device);
        ledger.each(device, live.class, |totals| totals.add(&live));
        ledger.obtained(&live, true);
        if let Some(sizes) = self.size_class(&live) {
            sizes.count += 1;
            sizes.bytes = sizes.bytes.saturating_add(live.size);
            sizes.live += 1;
            sizes.live_bytes = sizes.live_bytes.saturating_add(live.size);
        }
        // A block that overlaps another was not taken from the free ranges, so freeing the block must not change them.
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
            // `release` fails only if the segment was returned before the block, which happens if a context is
            // destroyed.
            let _ = device.release(live.address, live.allocated);
        }
        if let Some(sizes) = self.size_class(live) {
            sizes.live = sizes.live.saturating_sub(1);
            sizes.live_bytes = sizes.live_bytes.saturating_sub(live.size);
        }
    }

    /// The totals for allocations of this size; `None` if the allocation is no device memory.
    fn size_class(&mut self, live: &Live) -> Option<&mut SizeTotals> {
        let counts = live.device != HOST_DEVICE && Class::from_number(live.class)?.is_device_memory();
        counts.then(|| self.sizes.entry(live.size.checked_ilog2().unwrap_or(0)).or_default())
    }

    /// Whether `live` overlaps another live allocation. Only requested bytes are compared, because a policy may leave
    /// the bytes that rounding adds to another block.
    fn overlaps_another(&self, live: &Live) -> bool {
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

    fn segment_obtained(&mut self, device: i16, address: u64, size: u64, again: bool) {
        let ledger = self.device(device);
        if again {
            ledger.stitches += 1;
            ledger.stitched = ledger.stitched.saturating_add(size);
            let added = ledger.stitch_space.add_segment(address, size);
            self.anomalies.segment += u64::from(added != size);
            return;
        }
        ledger.segments_obtained += 1;
        let added = ledger.space.add_segment(address, size);
        ledger.slack.add(address, added);
        ledger.each(device, Class::Linear.number(), |totals| totals.reserved.add(added));
        self.anomalies.segment += u64::from(added != size);
    }

    fn segment_returned(&mut self, device: i16, address: u64, size: u64, again: bool) {
        let ledger = self.device(device);
        if again {
            let removed = ledger.remove_stitch(address, size);
            ledger.stitched = ledger.stitched.saturating_sub(removed);
            self.anomalies.segment += u64::from(removed != size);
            return;
        }
        ledger.segments_returned += 1;
        // Bytes of the range that no segment covered are not subtracted.
        let removed = ledger.space.remove_segment(address, size);
        ledger.slack.remove(address, removed);
        ledger.each(device, Class::Linear.number(), |totals| {
            totals.reserved.subtract(removed)
        });
        self.anomalies.segment += u64::from(removed != size);
    }

    fn pool(&mut self, device: i16, class: ClassCode, size: u64, used: u64) {
        let used = if class == Class::Graph.into() { used } else { 0 };
        let class = class.number();
        let ledger = self.device(device);
        let (size_before, used_before) = ledger.pools.insert(class, (size, used)).unwrap_or_default();
        ledger.each(device, class, |totals| {
            totals.reserved.change(size_before, size);
            totals.requested.change(used_before, used);
            totals.allocated.change(used_before, used);
        });
    }
}

/// The device whose ledger a record belongs to. Host memory has its own ledger, whatever device was current.
fn device_of(record: &Record) -> i16 {
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

#[cfg(test)]
mod tests;
