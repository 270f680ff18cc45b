//! How many bytes a job held at each time: one pass over a journal, with memory that does not grow with the journal.
//!
//! A *curve* is a level (live bytes, reserved bytes) over time, as *spans*: each has the first, the lowest, the highest
//! and the last point of a run of changes (known as M4). A drawing of spans that are narrower than a pixel covers the
//! same pixels as a drawing of all changes. Changes that are far from others keep a span of their own, so a short journal
//! is kept exactly. If there are too many spans, neighbours that lie close together are joined.
//!
//! The *peak* of a device is the first moment at which its live bytes are highest.

mod curve;

use std::collections::BTreeMap;

use journal::format::{Event, Record};

use super::job::Observer;
use super::ledger::{Ledger, device_of};
use super::scene::is_out_of_memory;

pub use curve::{Curve, Point};

/// The curves of one device, or of the host.
pub struct DeviceTimeline {
    /// Bytes of live allocations, after rounding.
    pub live: Curve,
    /// Bytes obtained from the next layer.
    pub reserved: Curve,
    /// Bytes of the device in use, by all processes, whenever the driver was asked.
    pub used: Curve,
}

#[derive(Default)]
pub struct Timeline {
    pub devices: BTreeMap<i16, DeviceTimeline>,
    most_spans: usize,
    /// The number of the last failure for lack of memory.
    failed: Option<u64>,
}

impl Timeline {
    /// A curve has at most `most_spans` spans. With two spans a pixel, a drawing is exact to the pixel.
    pub fn new(most_spans: usize) -> Self {
        Timeline {
            most_spans,
            ..Timeline::default()
        }
    }

    /// The numbers of the records, of so many, at which a device had its peak, of the last failure and of the end.
    pub fn moments(&self, records: u64) -> Vec<u64> {
        let peaks = self
            .devices
            .values()
            .filter_map(|device| Some(device.live.peak()?.event));
        peaks.chain(self.failed).chain(records.checked_sub(1)).collect()
    }
}

impl Observer for Timeline {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        let event = ledger.records - 1;
        match record.event {
            Event::Host(_) | Event::Surge(_) => return,
            Event::FrameworkRequest(_) | Event::ContextCreated { .. } => return,
            _ => {}
        }
        let device = device_of(record);
        let totals = ledger.devices.get(&device).map(|device| device.all).unwrap_or_default();
        let timeline = self.devices.entry(device).or_insert_with(|| {
            let [live, reserved, used] = [0; 3].map(|_| Curve::new(self.most_spans));
            DeviceTimeline { live, reserved, used }
        });
        let at = |bytes| Point {
            event,
            time_ns: record.time_ns,
            bytes,
        };
        timeline.live.push(at(totals.allocated.current));
        timeline.reserved.push(at(totals.reserved.current));
        match record.event {
            Event::Measured {
                mem_info: Some(info), ..
            } => timeline.used.push(at(info.total.saturating_sub(info.free))),
            Event::AllocFailed { result, .. } if is_out_of_memory(result) => self.failed = Some(event),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
