//! How many bytes a job held at each time: one pass over a journal, with memory that does not grow with the journal.
//!
//! A *curve* is a level (live bytes, reserved bytes) over time, as *spans*: each has the first, the lowest, the highest
//! and the last point of a run of changes (known as M4). A drawing of spans that are narrower than a pixel covers the
//! same pixels as a drawing of all changes. Changes that are far from others keep a span of their own, so a short journal
//! is kept exactly. If there are too many spans, neighbours that lie close together are joined.
//!
//! Around the peak, around the last request that failed for lack of memory, and before the end, the records themselves
//! are kept.
//!
//! The *peak* of a device is the first moment at which its live bytes are highest.

mod curve;

use std::collections::{BTreeMap, VecDeque};

use journal::format::{Event, Record};

use super::job::Observer;
use super::ledger::{Ledger, device_of};
use super::scene::is_out_of_memory;

pub use curve::{Curve, Point};

/// How many records are kept before a moment, and how many after it.
fn half(most_spans: usize) -> usize {
    (most_spans / 20).clamp(8, 300)
}

/// A record, with the levels of its device after it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The number of the record in the order of time, from 0.
    pub event: u64,
    pub record: Record,
    pub live: u64,
    pub reserved: u64,
}

/// The curves of one device, or of the host.
pub struct DeviceTimeline {
    /// Bytes of live allocations, after rounding.
    pub live: Curve,
    /// Bytes obtained from the next layer.
    pub reserved: Curve,
    /// Bytes of the device in use, by all processes, whenever the driver was asked.
    pub used: Curve,
    half: usize,
    /// The last records.
    recent: VecDeque<Moment>,
    peak: Around,
    failure: Around,
}

/// The records around one moment: those before it are taken from the last records once those after it have come.
#[derive(Default)]
struct Around {
    /// How many records of the device still have to come; `None` if there is no moment, or all have come.
    missing: Option<usize>,
    moments: Vec<Moment>,
}

/// The curves of all devices of one job.
pub struct Timeline {
    pub devices: BTreeMap<i16, DeviceTimeline>,
    most_spans: usize,
    events: u64,
}

impl Around {
    fn begin(&mut self, half: usize) {
        self.missing = Some(half);
    }

    fn came(&mut self, recent: &VecDeque<Moment>) {
        match self.missing {
            Some(0) => {
                self.moments = recent.iter().copied().collect();
                self.missing = None;
            }
            Some(missing) => self.missing = Some(missing - 1),
            None => {}
        }
    }

    fn moments<'a>(&'a self, recent: &'a VecDeque<Moment>, half: usize) -> Box<dyn Iterator<Item = &'a Moment> + 'a> {
        match self.missing {
            Some(missing) => {
                let before = (2 * half + 1).saturating_sub(missing);
                Box::new(recent.iter().skip(recent.len().saturating_sub(before)))
            }
            None => Box::new(self.moments.iter()),
        }
    }
}

impl DeviceTimeline {
    fn new(most_spans: usize) -> Self {
        DeviceTimeline {
            live: Curve::new(most_spans),
            reserved: Curve::new(most_spans),
            used: Curve::new(most_spans),
            half: half(most_spans),
            recent: VecDeque::new(),
            peak: Around::default(),
            failure: Around::default(),
        }
    }

    fn note(&mut self, moment: Moment) {
        let is_higher = self.live.peak().is_none_or(|peak| moment.live > peak.bytes);
        let at = |bytes| Point {
            event: moment.event,
            time_ns: moment.record.time_ns,
            bytes,
        };
        self.live.push(at(moment.live));
        self.reserved.push(at(moment.reserved));
        match moment.record.event {
            Event::Measured {
                mem_info: Some(info), ..
            } => self.used.push(at(info.total.saturating_sub(info.free))),
            Event::AllocFailed { result, .. } if is_out_of_memory(result) => self.failure.begin(self.half),
            _ => {}
        }
        if is_higher {
            self.peak.begin(self.half);
        }
        if self.recent.len() == 2 * self.half + 1 {
            self.recent.pop_front();
        }
        self.recent.push_back(moment);
        self.peak.came(&self.recent);
        self.failure.came(&self.recent);
    }

    /// The records around the peak, around the last request that failed for lack of memory, and before the end, in the
    /// order of time.
    pub fn kept(&self) -> Vec<Moment> {
        let before_end = self.recent.iter().skip(self.recent.len().saturating_sub(self.half));
        let mut kept: BTreeMap<u64, Moment> = BTreeMap::new();
        for moment in self
            .peak
            .moments(&self.recent, self.half)
            .chain(self.failure.moments(&self.recent, self.half))
            .chain(before_end)
        {
            kept.insert(moment.event, *moment);
        }
        kept.into_values().collect()
    }

    /// The live bytes: the points of the curve, and every change around the peak, the last failure and the end.
    pub fn live_points(&self) -> Vec<Point> {
        self.points(&self.live, |moment| moment.live)
    }

    /// The same of the reserved bytes.
    pub fn reserved_points(&self) -> Vec<Point> {
        self.points(&self.reserved, |moment| moment.reserved)
    }

    fn points(&self, curve: &Curve, level: impl Fn(&Moment) -> u64) -> Vec<Point> {
        let of_spans = curve.points().into_iter();
        let mut points: BTreeMap<u64, Point> = of_spans.map(|point| (point.event, point)).collect();
        for moment in self.kept() {
            let point = Point {
                event: moment.event,
                time_ns: moment.record.time_ns,
                bytes: level(&moment),
            };
            points.insert(moment.event, point);
        }
        let mut before = None;
        let mut points: Vec<Point> = points.into_values().collect();
        points.retain(|point| before.replace(point.bytes) != Some(point.bytes));
        points
    }
}

impl Timeline {
    /// A curve has at most `most_spans` spans. With two spans a pixel, a drawing is exact to the pixel.
    pub fn new(most_spans: usize) -> Self {
        Timeline {
            devices: BTreeMap::new(),
            most_spans,
            events: 0,
        }
    }

    /// Notes the levels after `record`, which `ledger` has applied.
    pub fn note(&mut self, record: &Record, ledger: &Ledger) {
        let event = self.events;
        self.events += 1;
        match record.event {
            Event::Host(_) | Event::Surge(_) => return,
            event if event.is_detail() => return,
            _ => {}
        }
        let device = device_of(record);
        let totals = ledger
            .devices
            .get(&device)
            .map_or_else(Default::default, |device| device.all);
        let timeline = self
            .devices
            .entry(device)
            .or_insert_with(|| DeviceTimeline::new(self.most_spans));
        timeline.note(Moment {
            event,
            record: *record,
            live: totals.allocated.current,
            reserved: totals.reserved.current,
        });
    }
}

impl Observer for Timeline {
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        self.note(record, ledger);
    }
}

#[cfg(test)]
mod tests;
