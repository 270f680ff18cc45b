//! Chooses the records that the page lists: all of a short job; of a long one those around the peak, the last failure
//! and the end, the failures, the marks, and the largest allocations.

use std::collections::BTreeMap;

use journal::format::{Event, Record};

use super::columns::FirstAndLast;
use super::data::Events;
use crate::analysis::each_once::EachOnce;
use crate::analysis::job::Observer;
use crate::analysis::ledger::{Ledger, device_of};
use crate::analysis::names::{api_name, result_name};
use crate::analysis::timeline::{Point, Timeline};

/// A record, with its number in the order of time.
type Numbered = (u64, Record);

/// A device, and its live and reserved bytes after a record.
pub type Levels = (i16, [Point; 2]);

pub struct Choice {
    /// Whether all records are chosen.
    is_short: bool,
    most: usize,
    /// The numbers of the moments whose neighbours are chosen, and how many before and after each.
    moments: Vec<u64>,
    half: u64,
    chosen: BTreeMap<u64, Record>,
    pinned: [FirstAndLast<Numbered>; 2],
    /// The largest allocations by size and number.
    largest: BTreeMap<(u64, u64), Record>,
    /// The seen records but measurements, which the list leaves out.
    in_all: u64,
    /// The levels at the neighbours of the moments.
    pub levels: Vec<Levels>,
}

impl Choice {
    /// Chooses about `most` of the records that `timeline` has seen, and `half` of them before and after each moment.
    pub fn new(most: usize, records: u64, timeline: &Timeline, half: u64) -> Self {
        Choice {
            is_short: records <= most as u64,
            most,
            moments: timeline.moments(records),
            half,
            chosen: BTreeMap::new(),
            pinned: [0; 2].map(|_| FirstAndLast::new(most / 16)),
            largest: BTreeMap::new(),
            in_all: 0,
            levels: Vec::new(),
        }
    }
}

impl Observer for Choice {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        let number = ledger.records - 1;
        let is_near = self.moments.iter().any(|moment| moment.abs_diff(number) <= self.half);
        let device = device_of(record);
        if is_near && let Some(ledger) = ledger.devices.get(&device) {
            let at = |bytes| Point {
                event: number,
                time_ns: record.time_ns,
                bytes,
            };
            let all = &ledger.all;
            self.levels
                .push((device, [at(all.allocated.current), at(all.reserved.current)]));
        }
        // The timeline draws measurements. In the list they would hide what the job did.
        if record.event.is_finding() {
            return;
        }
        self.in_all += 1;
        if self.is_short || is_near {
            self.chosen.insert(number, *record);
            return;
        }
        match record.event {
            Event::AllocFailed { .. } | Event::FreeFailed { .. } => self.pinned[0].push((number, *record)),
            Event::Mark { .. } => self.pinned[1].push((number, *record)),
            Event::Alloc(allocation) => {
                let least = self.largest.first_key_value().map_or(0, |(&(bytes, _), _)| bytes);
                let has_room = self.largest.len() < self.most / 8;
                if has_room || least < allocation.requested && self.largest.pop_first().is_some() {
                    self.largest.insert((allocation.requested, number), *record);
                }
            }
            _ => {}
        }
    }
}

impl Choice {
    /// The chosen records. `stack` gives the place of a stack, `text` that of a mark.
    pub fn finish(self, mut stack: impl FnMut(u32) -> Option<usize>, text: impl Fn(u64) -> String) -> Events {
        let mut chosen = self.chosen;
        chosen.extend(self.pinned.into_iter().flat_map(|pinned| pinned.list));
        chosen.extend(self.largest.into_iter().map(|((_, number), record)| (number, record)));
        let mut events = Events {
            in_all: self.in_all,
            number: chosen.keys().copied().collect(),
            times_ns: chosen.values().map(|record| record.time_ns).collect(),
            tid: chosen.values().map(|record| u64::from(record.tid)).collect(),
            bytes: chosen.values().map(|record| kind(&record.event).2).collect(),
            address: chosen.values().map(|record| kind(&record.event).1).collect(),
            ..Events::default()
        };
        let (mut kinds, mut apis) = (EachOnce::default(), EachOnce::default());
        for (place, record) in chosen.values().enumerate() {
            events.kind.push(kinds.place(kind(&record.event).0));
            events.api.push(apis.place(record.api.number()));
            events.device.push(record.device);
            events.stack.push(stack(record.stack).map_or(0, |place| place + 1));
            if let Some(note) = note(&record.event, &text) {
                events.notes.insert(place, note);
            }
        }
        events.kinds = kinds.list;
        events.apis = apis.list.into_iter().map(api_name).collect();
        events
    }
}

/// The kind, the address, and the bytes of an event.
fn kind(event: &Event) -> (&'static str, u64, u64) {
    match *event {
        Event::Alloc(allocation) => ("allocated", allocation.address, allocation.requested),
        Event::Free { allocation, .. } => ("freed", allocation.address, allocation.requested),
        Event::AllocFailed { requested, .. } => ("failed allocation", 0, requested),
        Event::FreeFailed { address, segment, .. } => ("failed free", address, segment.unwrap_or(0)),
        Event::SegmentAlloc { address, size, .. } => ("segment obtained", address, size),
        Event::SegmentFree { address, size, .. } => ("segment returned", address, size),
        Event::StitchPart { address, size, .. } => ("part of a stitch", address, size),
        Event::PoolReserved { reserved, .. } => ("driver's pool", 0, reserved),
        Event::ContextDestroyed { context } => ("context destroyed", context, 0),
        Event::Map { address, size, .. } => ("mapped", address, size),
        Event::Unmap { address, size } => ("unmapped", address, size),
        Event::Mark { .. } => ("mark", 0, 0),
        _ => ("unknown", 0, 0),
    }
}

fn note(event: &Event, text: &impl Fn(u64) -> String) -> Option<String> {
    match *event {
        Event::AllocFailed {
            result, guard: Some(_), ..
        } => Some(format!("{}, refused by the guard", result_name(result))),
        Event::AllocFailed {
            result,
            over_limit: true,
            ..
        } => Some(format!("{}, refused by the limit", result_name(result))),
        Event::AllocFailed { result, .. } => Some(result_name(result)),
        Event::FreeFailed { result, .. } => Some(result_name(result)),
        Event::Mark { text: number, .. } => Some(text(number)),
        Event::Free { context_gone: true, .. } | Event::SegmentFree { context_gone: true, .. } => {
            Some("its context was destroyed".to_owned())
        }
        Event::SegmentAlloc { again: true, .. } | Event::SegmentFree { again: true, .. } => {
            Some("a stitch: memory of segments mapped again".to_owned())
        }
        _ => None,
    }
}
