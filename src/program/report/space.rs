//! The segments of a device at the last failure: why a request did not fit although memory was free inside them.

use journal::format::{Event, Record};
use serde_json::{Value, json};

use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::job::Observer;
use crate::analysis::ledger::Ledger;

/// How many segments are shown, and how many free ranges of one.
const MOST_SEGMENTS: usize = 300;
const MOST_FREE: usize = 400;

/// First address, bytes, free bytes, and free ranges as start and end.
type Segment = (u64, u64, u64, Vec<(u64, u64)>);

/// Looks at the ledger when the failure comes, while a journal is read.
pub struct AtFailure {
    pub device: i16,
    pub time_ns: u64,
    /// `None` until the failure came, or if no segment was there.
    pub space: Option<Value>,
}

impl Observer for AtFailure {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        if let Event::AllocFailed { requested, .. } = record.event
            && record.time_ns == self.time_ns
            && self.space.is_none()
        {
            let ledger = ledger.devices.get(&self.device);
            self.space = ledger.and_then(|ledger| space(ledger, self.device, record.time_ns, requested));
        }
    }
}

/// The segments of the framework's cache if there is one, or else of the policy.
fn space(ledger: &DeviceLedger, device: i16, time_ns: u64, requested: u64) -> Option<Value> {
    let free = ledger.free();
    let of_framework = ledger.framework.segments() > 0;
    let space = if of_framework { &ledger.framework } else { &ledger.space };
    let mut gaps = space.free_ranges().into_iter().peekable();
    let mut segments: Vec<Segment> = Vec::new();
    for (start, end) in space.ranges() {
        let mut here = Vec::new();
        while let Some(gap) = gaps.next_if(|&(from, _)| from < end) {
            here.push(gap);
        }
        let free: u64 = here.iter().map(|(from, to)| to - from).sum();
        segments.push((start, end - start, free, largest(here)));
    }
    if segments.is_empty() {
        return None;
    }
    segments.sort_by_key(|&(_, bytes, ..)| std::cmp::Reverse(bytes));
    let left_out = segments.len().saturating_sub(MOST_SEGMENTS);
    segments.truncate(MOST_SEGMENTS);
    segments.sort_by_key(|&(start, ..)| start);
    let segments = segments.into_iter().map(|(start, bytes, free, ranges)| {
        // Offset and length; if there are many, the largest.
        let ranges: Vec<(u64, u64)> = ranges.iter().map(|(from, to)| (from - start, to - from)).collect();
        json!({ "address": start, "bytes": bytes, "live": bytes.saturating_sub(free), "free": ranges })
    });
    Some(json!({
        "device": device,
        "time_ns": time_ns,
        "requested": requested,
        "free": free.bytes,
        "largest_free": free.largest,
        "segments": segments.collect::<Value>(),
        "left_out": left_out,
    }))
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
