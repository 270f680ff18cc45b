//! Rebuilds the library's ledger from the events of one journal: which allocations are live, and current and peak bytes
//! of each device, API and size.
//!
//! The rules are those of the library's ledger, so a complete journal gives the totals that the library had at its end.
//! An event that contradicts earlier events (a free of an unknown address, two blocks that overlap) is counted as an
//! anomaly.

use std::collections::BTreeMap;

use base::api::Class;
use base::cuda::HOST_DEVICE;
use journal::format::{FLAG_DIRECT, FLAG_LIMIT, FLAG_MOVED, Kind, Record};
use journal::reader::Event;

use super::device_ledger::{DeviceLedger, Live, NameSpace};

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
    /// Calls among `count` that our limit refused.
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
    /// Requests for device memory by size. The key is the exponent of the largest power of two that is not above the
    /// size; 0 for 0 and 1 bytes.
    pub sizes: BTreeMap<u32, SizeTotals>,
    /// By `Api` number and result.
    pub failures: BTreeMap<(u16, i32), Failure>,
    pub anomalies: Anomalies,
    live: BTreeMap<(NameSpace, u64), Live>,
}

impl Ledger {
    pub fn apply(&mut self, event: &Event) {
        let record = &event.record;
        // A measurement reports memory but is no call of the job, so it is not counted as an event.
        self.events += u64::from(record.kind != Kind::Measured as u8);
        self.last_ns = self.last_ns.max(record.time_ns);
        let device = account_of(record);
        let peak_before = self.devices.entry(device).or_default().all.reserved.peak;
        match Kind::from_number(record.kind) {
            Some(Kind::Alloc) => self.alloc(device, record),
            Some(Kind::Free) => self.free(record),
            Some(Kind::AllocFailed | Kind::FreeFailed) => self.failed(device, record),
            Some(Kind::SegmentAlloc) => self.segment_obtained(device, record),
            Some(Kind::SegmentFree) => self.segment_returned(device, record),
            Some(Kind::PoolReserved) => self.pool(device, record),
            Some(Kind::Measured) => {
                let account = self.device(device);
                let balance = account.balance();
                account.measurements.add(record, balance);
            }
            Some(Kind::ContextDestroyed) => self.device(device).measurements.context_destroyed(),
            Some(Kind::Map | Kind::Unmap) => {}
            None => self.anomalies.unknown_kind += 1,
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

    fn call(&mut self, record: &Record) {
        let api = self.apis.entry(record.api).or_default();
        api.calls += 1;
        api.bytes = api.bytes.saturating_add(record.size);
    }

    fn alloc(&mut self, device: i16, record: &Record) {
        self.call(record);
        if Class::from_number(record.class).is_none() {
            self.anomalies.unknown_class += 1;
        }
        let key = (NameSpace::of(record.class), record.address);
        if let Some(stale) = self.live.remove(&key) {
            // The same address was handed out again, so the earlier allocation must have been freed without a record.
            self.anomalies.same_address += 1;
            self.forget(&stale);
        }
        let direct = record.flags & FLAG_DIRECT != 0;
        let live = Live {
            address: record.address,
            size: record.size,
            allocated: record.allocated,
            reserved: if direct { record.detail } else { 0 },
            api: record.api,
            class: record.class,
            device,
            tid: record.tid,
            stream: record.stream,
            time_ns: record.time_ns,
            in_segment: !direct && key.0 == NameSpace::Address && self.device(device).space.holds(record.address),
        };
        let overlaps = if live.in_segment {
            self.device(device).space.occupy(live.address, live.allocated).is_err()
        } else {
            key.0 == NameSpace::Address && self.overlaps_another(&live)
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
        // An overlapping block was not taken from the free ranges, so its free must not put it back there.
        self.live.insert(
            key,
            Live {
                in_segment: live.in_segment && !overlaps,
                ..live
            },
        );
    }

    fn free(&mut self, record: &Record) {
        self.call(record);
        match self.live.remove(&(NameSpace::of(record.class), record.address)) {
            Some(live) => self.forget(&live),
            None => self.anomalies.unknown_free += 1,
        }
    }

    fn forget(&mut self, live: &Live) {
        let device = self.device(live.device);
        device.each(live.device, live.class, |totals| totals.subtract(live));
        device.obtained(live, false);
        if live.in_segment {
            // This fails only if the segment was returned before the block, which happens if a context is destroyed.
            let _ = device.space.release(live.address, live.allocated);
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

    /// Whether another live allocation overlaps this one. Only requested bytes are compared, because a policy may not
    /// occupy the bytes that rounding adds.
    fn overlaps_another(&self, live: &Live) -> bool {
        let key = |address| (NameSpace::Address, address);
        let before = self.live.range(key(0)..key(live.address)).next_back();
        let after = self.live.range(key(live.address)..=key(u64::MAX)).next();
        before.is_some_and(|(_, other)| other.address.saturating_add(other.size) > live.address)
            || after.is_some_and(|(_, other)| live.address.saturating_add(live.size) > other.address)
    }

    fn failed(&mut self, device: i16, record: &Record) {
        let api = self.apis.entry(record.api).or_default();
        api.calls += 1;
        api.failures += 1;
        self.device(device).failures += 1;
        let failure = self.failures.entry((record.api, record.result)).or_default();
        failure.count += 1;
        failure.by_limit += u64::from(record.flags & FLAG_LIMIT != 0);
        failure.last_size = record.size;
        failure.last_device = record.device;
        failure.last_ns = record.time_ns;
    }

    fn segment_obtained(&mut self, device: i16, record: &Record) {
        let account = self.device(device);
        account.segments_obtained += 1;
        // A move has one SegmentAlloc and one or more SegmentFree records with this flag. It is counted once, at the
        // SegmentAlloc.
        if record.flags & FLAG_MOVED != 0 {
            account.remaps += 1;
            account.remapped = account.remapped.saturating_add(record.size);
        }
        let added = account.space.add_segment(record.address, record.size);
        account.slack.add(record.address, added);
        account.each(device, Class::Linear.number(), |totals| totals.reserved.add(added));
        self.anomalies.segment += u64::from(added != record.size);
    }

    fn segment_returned(&mut self, device: i16, record: &Record) {
        let account = self.device(device);
        account.segments_returned += 1;
        // Only the bytes that a segment still covered are subtracted.
        let removed = account.space.remove_segment(record.address, record.size);
        account.slack.remove(record.address, removed);
        account.each(device, Class::Linear.number(), |totals| {
            totals.reserved.subtract(removed)
        });
        self.anomalies.segment += u64::from(removed != record.size);
    }

    fn pool(&mut self, device: i16, record: &Record) {
        let (size, class) = (record.size, record.class);
        let graph = class == Class::Graph.number();
        let used = if graph { record.allocated } else { 0 };
        let account = self.device(device);
        let (size_before, used_before) = account.pools.insert(class, (size, used)).unwrap_or_default();
        account.each(device, class, |totals| {
            totals.reserved.change(size_before, size);
            totals.requested.change(used_before, used);
            totals.allocated.change(used_before, used);
        });
    }
}

/// The ledger that a record belongs to. Host memory has its own, whatever device was current.
fn account_of(record: &Record) -> i16 {
    match Class::from_number(record.class) {
        Some(Class::Host | Class::HostRegistered) => HOST_DEVICE,
        _ => record.device,
    }
}

#[cfg(test)]
mod tests;
