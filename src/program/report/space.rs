//! The segments of a device at the last failure: why a request did not fit although memory was free inside them.

use journal::format::Event;
use journal::reader::Journal;

use super::data::{Segment, Space};
use crate::analysis::ledger::Ledger;

/// How many segments are shown, and how many free ranges of one.
const MOST_SEGMENTS: usize = 300;
const MOST_FREE: usize = 400;

/// Reads the journal up to the failure at this time on this device. `None` if no segment was there.
pub fn at_failure(journal: &Journal, device: i16, time_ns: u64, requested: u64) -> Option<Space> {
    let mut ledger = Ledger::default();
    for record in journal.records().map_while(Result::ok) {
        if record.time_ns > time_ns {
            break;
        }
        let is_it = record.time_ns == time_ns && matches!(record.event, Event::AllocFailed { .. });
        ledger.apply(&record);
        if is_it {
            break;
        }
    }
    let ledger = ledger.devices.get(&device)?;
    let free = ledger.free();
    let mut gaps = ledger.space.free_ranges().into_iter().peekable();
    let mut segments: Vec<Segment> = Vec::new();
    for (start, end) in ledger.space.joined() {
        let mut here = Vec::new();
        while let Some(gap) = gaps.next_if(|&(from, _)| from < end) {
            here.push(gap);
        }
        let free: u64 = here.iter().map(|(from, to)| to - from).sum();
        let free_ranges = largest(here).into_iter().map(|(from, to)| (from - start, to - from));
        segments.push(Segment {
            address: start,
            bytes: end - start,
            live: (end - start).saturating_sub(free),
            free: free_ranges.collect(),
        });
    }
    if segments.is_empty() {
        return None;
    }
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.bytes));
    let left_out = segments.len().saturating_sub(MOST_SEGMENTS) as u64;
    segments.truncate(MOST_SEGMENTS);
    segments.sort_by_key(|segment| segment.address);
    Some(Space {
        device,
        time_ns,
        requested,
        free: free.bytes,
        largest_free: free.largest,
        segments,
        left_out,
    })
}

/// The largest ranges, in the order of addresses.
fn largest(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    if ranges.len() > MOST_FREE {
        ranges.sort_by_key(|(from, to)| std::cmp::Reverse(to - from));
        ranges.truncate(MOST_FREE);
        ranges.sort_unstable();
    }
    ranges
}
