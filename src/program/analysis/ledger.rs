//! Rebuilds the library's ledger from the events of one journal: which allocations are live, and the bytes of each
//! device, API and size.
//!
//! The library's ledger follows the same rules, so a complete journal gives the totals that the library had at its end.
//! An event that contradicts earlier events (a free of an unknown address, two blocks that overlap) is counted as an
//! anomaly.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use base::api::{Api, Class, ClassCode};
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use journal::format::{Allocation, Event, Record};
use serde::Serialize;

use super::budget::Charge;
use super::device_ledger::{DeviceLedger, Live, NameSpace, Owner, Taken};
use super::host_levels::HostLevels;
use super::ranges::{Contradiction, Ranges};
use super::scene::{Around, Scenes};
use super::surges::Surges;

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ApiTotals {
    pub calls: u64,
    pub failed_calls: u64,
    /// Bytes requested or freed by calls that succeeded.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Failure {
    pub count: u64,
    /// The calls in `count` that our limit refused, and those that our guard refused.
    #[serde(rename = "refused_by_limit")]
    pub by_limit: u64,
    #[serde(rename = "refused_by_guard")]
    pub by_guard: u64,
    pub last_size: u64,
    pub last_device: i16,
    #[serde(rename = "last_time_ns")]
    pub last_ns: u64,
}

/// Events that contradict earlier events, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Anomalies {
    pub unknown_free: u64,
    pub same_address: u64,
    pub overlap: u64,
    pub segment: u64,
    pub unknown_kind: u64,
    pub unknown_class: u64,
    pub unknown_device: u64,
}

impl Anomalies {
    pub fn total(&self) -> u64 {
        let of_calls = self.unknown_free + self.same_address + self.overlap + self.segment;
        of_calls + self.unknown_kind + self.unknown_class + self.unknown_device
    }
}

#[derive(Default)]
pub struct Ledger {
    /// Records of any kind, and those of calls.
    pub records: u64,
    pub events: u64,
    pub last_ns: u64,
    /// By device number; `HOST_DEVICE` is the host.
    pub devices: BTreeMap<i16, DeviceLedger>,
    /// By `Api` number.
    pub apis: BTreeMap<u16, ApiTotals>,
    /// By `Api` number and result.
    pub failures: BTreeMap<(u16, i32), Failure>,
    pub anomalies: Anomalies,
    pub surges: Surges,
    pub host: HostLevels,
    pub scenes: Scenes,
    /// The streams that allocations named, a bit for each number of the first 128; the first bit for those that named none.
    pub streams: u128,
    /// Memory was there before the first record: how much had come and gone by then is not known.
    pub begins_late: bool,
    /// Where blocks lie is not followed: nothing is known of free ranges and overlaps.
    pub(super) has_sums_alone: bool,
    live: Table,
    /// The addresses of live allocations that lie in no segment.
    direct: Ranges,
    gone: Option<Live>,
    last_device: i16,
}

impl Ledger {
    pub fn apply(&mut self, record: &Record) {
        self.gone = None;
        self.records += 1;
        self.last_ns = self.last_ns.max(record.time_ns);
        // A mark, and what was found out, is no call of the job, so it does not count as an event.
        let tells = record.event.is_finding();
        self.events += u64::from(!tells && !matches!(record.event, Event::Mark { .. }));
        match record.event {
            // The library itself marks nothing but surges under this name.
            Event::Mark { .. } => return self.surges.count += u64::from(record.api.known() == Some(Api::Policy)),
            Event::Host(memory) => return self.host.add(record.time_ns, memory),
            Event::Surge(share) => return self.surges.add(record, share),
            Event::ContextCreated { .. } => return,
            _ => {}
        }
        let device = device_of(record);
        self.last_device = device;
        if device < HOST_DEVICE || device as usize >= MAX_DEVICES && device != HOST_DEVICE {
            self.anomalies.unknown_device += 1;
            return;
        }
        if tells || matches!(record.event, Event::AllocFailed { .. } | Event::FreeFailed { .. }) {
            let devices = &mut self.devices;
            self.scenes
                .apply(record, || Around::from_ledger(devices.entry(device).or_default()));
        }
        match record.event {
            Event::Alloc(allocation) => self.alloc(device, record, &allocation),
            Event::Free { allocation, .. } => self.free(device, record, &allocation),
            Event::AllocFailed {
                requested,
                result,
                over_limit,
                guard,
                ..
            } => self.failed(device, record, requested, result, [over_limit, guard.is_some()]),
            Event::FreeFailed { segment, result, .. } => {
                self.failed(device, record, segment.unwrap_or(0), result, [false; 2]);
            }
            Event::SegmentAlloc { address, size, again } => self.segment(device, record, (address, size), again, true),
            Event::SegmentFree {
                address, size, again, ..
            } => self.segment(device, record, (address, size), again, false),
            Event::StitchPart { address, size, home } => {
                self.device(device).parts.insert(address, (size, home));
            }
            Event::PoolReserved { class, reserved, used } => self.pool(device, class, reserved, used),
            Event::Measured { .. } => {
                let ledger = self.device(device);
                let balance = ledger.balance();
                ledger.measurements.add(record, balance);
                ledger.since_measured = 0;
            }
            Event::ContextDestroyed { .. } => self.device(device).measurements.context_destroyed(),
            Event::Reclaimed { bytes, for_others, .. } => self.device(device).reclaims.add(bytes, for_others),
            Event::Unknown { .. } => self.anomalies.unknown_kind += 1,
            // No sum depends on the others, or they were handled above.
            _ => {}
        }
        let ledger = self.device(device);
        ledger.since_measured = ledger.since_measured.max(ledger.all.reserved.current);
        if record.event.moves_memory() && ![Api::torch_alloc.into(), Api::torch_free.into()].contains(&record.api) {
            ledger.changed_ns = ledger.changed_ns.max(record.time_ns);
        }
    }

    /// The live allocations, largest first.
    pub fn live(&self) -> Vec<Live> {
        let mut live: Vec<Live> = self.live_unsorted().copied().collect();
        live.sort_by_key(|live| (std::cmp::Reverse(live.size), live.address));
        live
    }

    /// The live allocation that a record made.
    pub fn at(&self, made: &Allocation) -> Option<&Live> {
        self.of_key(key(made))
    }

    pub fn of_key(&self, key: Key) -> Option<&Live> {
        self.live.get(key)
    }

    pub fn count_live(&self) -> usize {
        self.live.live.len()
    }

    pub fn live_unsorted(&self) -> impl Iterator<Item = &Live> {
        self.live.live.iter()
    }

    /// The allocation that the last record removed: freed, or replaced by another at the same address.
    #[inline]
    pub fn gone(&self) -> Option<&Live> {
        self.gone.as_ref()
    }

    #[inline]
    pub fn last_device(&self) -> i16 {
        self.last_device
    }

    /// The live allocations in no order, of which the ledger keeps none. Sums and peaks stay.
    pub fn take_live(&mut self) -> Vec<Live> {
        self.end();
        std::mem::take(&mut self.live).live
    }

    /// No further record comes: gives back the memory that only another one would need.
    pub fn end(&mut self) {
        self.direct = Ranges::default();
    }

    pub fn failed_calls(&self) -> u64 {
        self.failures.values().map(|failure| failure.count).sum()
    }

    fn device(&mut self, device: i16) -> &mut DeviceLedger {
        self.devices.entry(device).or_default()
    }

    fn call(&mut self, record: &Record, bytes: u64) {
        if record.api == Api::torch_before.into() {
            self.begins_late = true;
            return;
        }
        let api = self.apis.entry(record.api.number()).or_default();
        api.calls += 1;
        api.bytes = api.bytes.saturating_add(bytes);
    }

    fn alloc(&mut self, device: i16, record: &Record, allocation: &Allocation) {
        let &Allocation { class, address, .. } = allocation;
        self.streams |= 1 << allocation.stream.min(127);
        self.call(record, allocation.requested);
        if class.known().is_none() {
            self.anomalies.unknown_class += 1;
        }
        if let Some(stale) = self.live.remove(key(allocation)) {
            // The same address was handed out again, so the earlier allocation must have been freed without a record.
            self.anomalies.same_address += 1;
            self.forget(&stale);
        }
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
            stack: record.stack,
            time_ns: record.time_ns,
            slot: record.slot,
            taken: Taken::Nothing,
        };
        let taken = self.take(&live, allocation.reserved.is_none());
        self.anomalies.overlap += u64::from(taken.is_err());
        let ledger = self.device(device);
        ledger.count(&live, true);
        ledger.floors.note(ledger.all.allocated.current, record.time_ns, false);
        self.scenes.served(record, live.size);
        self.scenes.allocated(record.time_ns);
        // A block that overlaps another has taken nothing, so freeing the block must give nothing back.
        let taken = taken.unwrap_or(Taken::Nothing);
        self.live.insert(Live { taken, ..live });
    }

    /// Takes the addresses of an allocation. Without rounding if it lies in no segment, because a policy may leave the
    /// bytes that rounding adds to another block.
    fn take(&mut self, live: &Live, may_lie_in_segment: bool) -> Result<Taken, Contradiction> {
        if self.has_sums_alone || NameSpace::of(live.class) != NameSpace::Address {
            return Ok(Taken::Nothing);
        }
        let device = self.device(live.device);
        if may_lie_in_segment && device.framework.holds(live.address) {
            device.framework.occupy(live.address, live.allocated)?;
            return Ok(Taken::InFramework);
        }
        if may_lie_in_segment && device.holds(live.address) {
            device.occupy(live.address, live.allocated)?;
            return Ok(Taken::InSegment);
        }
        match live.size {
            0 => Ok(Taken::Nothing),
            size => self.direct.occupy(live.address, size).map(|()| Taken::Direct),
        }
    }

    fn free(&mut self, device: i16, record: &Record, freed: &Allocation) {
        self.call(record, freed.requested);
        match self.live.remove(key(freed)) {
            Some(live) => self.forget(&live),
            None => self.anomalies.unknown_free += 1,
        }
        let ledger = self.device(device);
        ledger.floors.note(ledger.all.allocated.current, record.time_ns, true);
        self.scenes.freed(record);
    }

    fn forget(&mut self, live: &Live) {
        self.gone = Some(*live);
        let device = self.device(live.device);
        device.count(live, false);
        // `release` fails only if the segment was returned before the block, which happens if a context is destroyed.
        let _ = match live.taken {
            Taken::Nothing => Ok(()),
            Taken::InSegment => device.release(live.address, live.allocated),
            Taken::InFramework => device.framework.release(live.address, live.allocated),
            Taken::Direct => self.direct.release(live.address, live.size),
        };
    }

    fn failed(&mut self, device: i16, record: &Record, size: u64, result: i32, [over_limit, guarded]: [bool; 2]) {
        let number = record.api.number();
        let api = self.apis.entry(number).or_default();
        api.calls += 1;
        api.failed_calls += 1;
        self.device(device).failed_calls += 1;
        let failure = self.failures.entry((number, result)).or_default();
        failure.count += 1;
        failure.by_limit += u64::from(over_limit);
        failure.by_guard += u64::from(guarded);
        failure.last_size = size;
        failure.last_device = record.device;
        failure.last_ns = record.time_ns;
    }

    fn segment(&mut self, device: i16, record: &Record, (address, size): (u64, u64), again: bool, comes: bool) {
        let owner = match again {
            _ if is_of_framework(record) => Owner::Framework,
            true => Owner::Stitch,
            false => Owner::Policy,
        };
        if owner == Owner::Framework {
            self.call(record, size);
        }
        if owner == Owner::Framework && comes {
            self.scenes.served(record, size);
            // PyTorch joins what it maps side by side, but not what it allocated. A snapshot does not tell which it is.
            let is_joined = matches!(
                record.api.known(),
                Some(Api::cuMemMap | Api::torch_segment_alloc | Api::torch_before)
            );
            self.device(device).framework.apart = !is_joined;
        }
        let bytes = self.device(device).segment(device, owner, address, size, comes);
        self.anomalies.segment += u64::from(bytes != size);
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

/// What names a live allocation.
pub type Key = (NameSpace, u64);

pub fn key_of(live: &Live) -> Key {
    (NameSpace::of(live.class), live.address)
}

/// What a live allocation costs, in bytes: itself, its place, and its addresses. Measured with 2,000,000.
const COST: u64 = 112;

fn key(of: &Allocation) -> Key {
    (NameSpace::of(of.class.number()), of.address)
}

/// The live allocations, by what names them. They lie side by side, so that each costs hardly more than its fields.
#[derive(Default)]
struct Table {
    live: Vec<Live>,
    charge: Charge,
    /// Where each lies in `live`.
    places: HashTable<u32>,
    hasher: RandomState,
}

impl Table {
    fn get(&self, key: Key) -> Option<&Live> {
        let hash = self.hasher.hash_one(key);
        let is_it = |&place: &u32| key_of(&self.live[place as usize]) == key;
        self.places.find(hash, is_it).map(|&place| &self.live[place as usize])
    }

    fn remove(&mut self, key: Key) -> Option<Live> {
        let hash = self.hasher.hash_one(key);
        let live = &self.live;
        let is_it = |&place: &u32| key_of(&live[place as usize]) == key;
        let (place, _) = self.places.find_entry(hash, is_it).ok()?.remove();
        // The last one moves to the place.
        let last = (self.live.len() - 1) as u32;
        if place != last {
            let hash = self.hasher.hash_one(key_of(&self.live[last as usize]));
            *self.places.find_mut(hash, |&other| other == last)? = place;
        }
        Some(self.live.swap_remove(place as usize))
    }

    /// Adds an allocation whose key is not there.
    fn insert(&mut self, live: Live) {
        let place = self.live.len() as u32;
        self.live.push(live);
        self.charge.for_live(self.live.len(), COST);
        let (hasher, live) = (&self.hasher, &self.live);
        let hash = |&place: &u32| hasher.hash_one(key_of(&live[place as usize]));
        self.places.insert_unique(hash(&place), place, hash);
    }
}

/// Whether a segment is one of a framework's own cache, which asked for it by a call. A policy's segments come by no call of
/// the job.
pub fn is_of_framework(record: &Record) -> bool {
    record.api.known() != Some(Api::Policy)
}

/// The device whose ledger a record belongs to. Host memory has its own ledger, whatever device was current.
pub fn device_of(record: &Record) -> i16 {
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
