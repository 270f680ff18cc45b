//! Perfetto's trace (TrackEvent): for each process and device the counters `live` and `reserved` in bytes, `free` as
//! the next layer measured it, instants for failures and marks, and slices for ranges. Times are nanoseconds since
//! 1970.
//!
//! The messages are those of <https://github.com/google/perfetto/tree/main/protos/perfetto/trace>, with the fields that
//! are written here.

use std::collections::HashMap;
use std::io::{self, Write};

use base::api::{Api, Class};
use base::cuda::HOST_DEVICE;
use base::units::size;
use journal::format::{Event, MarkKind, Record};
use prost::Message;

use super::holders::memory_name;
use super::source::Process;
use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::ledger::Ledger;
use crate::analysis::names::{api_name, result_name};

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(uint64, tag = "8")]
    timestamp: u64,
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    counter_value: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(string, repeated, tag = "2")]
    cmdline: Vec<String>,
    #[prost(string, tag = "6")]
    process_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(int32, tag = "2")]
    tid: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct CounterDescriptor {
    #[prost(int32, tag = "3")]
    unit: i32,
}

// Values of TrackEvent.Type and of CounterDescriptor.Unit.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;
const SIZE_BYTES: i32 = 3;

/// One packet of a trace. A trace is a sequence of these, so it can be written while it is made.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Counter {
    Live,
    Reserved,
    Limit,
    Free,
    Resident,
}

impl Counter {
    fn name(self) -> &'static str {
        match self {
            Counter::Live => "live",
            Counter::Reserved => "reserved",
            Counter::Limit => "limit",
            Counter::Free => "free (measured)",
            Counter::Resident => "resident",
        }
    }
}

pub struct Writer<'w> {
    out: &'w mut dyn Write,
    bytes: Vec<u8>,
    next: u64,
    /// Which process is written, from 1.
    sequence: u32,
    process: u64,
    counters: HashMap<(i16, Counter), (u64, Option<u64>)>,
    threads: HashMap<u32, u64>,
    /// The tracks of the open ranges that are no thread's, by their texts, and the tracks without an open range. Such ranges
    /// may overlap, and slices of one track may not.
    ranges: HashMap<u64, Vec<u64>>,
    idle_tracks: Vec<u64>,
    ledger: Ledger,
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write) -> Writer<'w> {
        Writer {
            out,
            bytes: Vec::new(),
            next: 1,
            sequence: 0,
            process: 0,
            counters: HashMap::new(),
            threads: HashMap::new(),
            ranges: HashMap::new(),
            idle_tracks: Vec::new(),
            ledger: Ledger::default(),
        }
    }

    fn write(&mut self, packet: TracePacket) -> io::Result<()> {
        self.bytes.clear();
        let trace = Trace { packet: vec![packet] };
        trace.encode(&mut self.bytes).map_err(io::Error::other)?;
        self.out.write_all(&self.bytes)
    }

    fn describe(&mut self, track: TrackDescriptor) -> io::Result<u64> {
        let uuid = self.next;
        self.next += 1;
        self.write(TracePacket {
            trusted_packet_sequence_id: self.sequence,
            track_descriptor: Some(TrackDescriptor { uuid, ..track }),
            ..TracePacket::default()
        })?;
        Ok(uuid)
    }

    /// What follows is of this process.
    pub fn process(&mut self, process: &Process) -> io::Result<()> {
        self.sequence += 1;
        self.counters.clear();
        self.threads.clear();
        self.ranges.clear();
        self.idle_tracks.clear();
        self.ledger = Ledger::default();
        let header = process.header();
        self.process = self.describe(TrackDescriptor {
            process: Some(ProcessDescriptor {
                pid: header.pid as i32,
                cmdline: header.command_line.clone(),
                process_name: process.title(),
            }),
            ..TrackDescriptor::default()
        })?;
        for device in &header.devices {
            if let (Some(limit), Ok(ordinal)) = (device.limit, i16::try_from(device.ordinal)) {
                self.count(header.wall_start_ns, ordinal, Counter::Limit, limit)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, timestamp: u64, device: i16, counter: Counter, value: u64) -> io::Result<()> {
        let track = match self.counters.get(&(device, counter)) {
            Some(&(_, Some(last))) if last == value => return Ok(()),
            Some(&(track, _)) => track,
            None => self.describe(TrackDescriptor {
                name: Some(format!("{} {}", memory_name(device), counter.name())),
                parent_uuid: Some(self.process),
                counter: Some(CounterDescriptor { unit: SIZE_BYTES }),
                ..TrackDescriptor::default()
            })?,
        };
        self.counters.insert((device, counter), (track, Some(value)));
        self.event(
            timestamp,
            TrackEvent {
                kind: COUNTER,
                track_uuid: track,
                counter_value: Some(i64::try_from(value).unwrap_or(i64::MAX)),
                ..TrackEvent::default()
            },
        )
    }

    fn event(&mut self, timestamp: u64, event: TrackEvent) -> io::Result<()> {
        self.write(TracePacket {
            timestamp,
            trusted_packet_sequence_id: self.sequence,
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn thread(&mut self, process: &Process, tid: u32) -> io::Result<u64> {
        if let Some(&track) = self.threads.get(&tid) {
            return Ok(track);
        }
        let track = self.describe(TrackDescriptor {
            thread: Some(ThreadDescriptor {
                pid: process.header().pid as i32,
                tid: tid as i32,
            }),
            parent_uuid: Some(self.process),
            ..TrackDescriptor::default()
        })?;
        self.threads.insert(tid, track);
        Ok(track)
    }

    /// The track for a range with this text, which may end on another thread than it began on. `None` if no such range is
    /// open that could end.
    fn range(&mut self, text: u64, kind: MarkKind) -> io::Result<Option<u64>> {
        if kind == MarkKind::End {
            let track = self.ranges.get_mut(&text).and_then(Vec::pop);
            self.idle_tracks.extend(track);
            return Ok(track);
        }
        let track = match self.idle_tracks.pop() {
            Some(track) => track,
            None => self.describe(TrackDescriptor {
                name: Some("ranges".to_owned()),
                parent_uuid: Some(self.process),
                ..TrackDescriptor::default()
            })?,
        };
        self.ranges.entry(text).or_default().push(track);
        Ok(Some(track))
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        let now = process.unix_ns(record.time_ns);
        self.ledger.apply(record);
        let host = matches!(record.event, Event::Alloc(one) | Event::Free { allocation: one, .. }
            if matches!(one.class.known(), Some(Class::Host | Class::HostRegistered)));
        let device = if host { HOST_DEVICE } else { record.device };
        let levels = self.ledger.devices.get(&device).map(|ledger: &DeviceLedger| ledger.all);
        if let Some(all) = levels
            && all.count > 0
        {
            self.count(now, device, Counter::Live, all.allocated.current)?;
            self.count(now, device, Counter::Reserved, all.reserved.current)?;
        }
        let of_process = matches!(record.api.known(), Some(Api::nvtxRangeStart | Api::nvtxRangeEnd));
        let track = match record.event {
            Event::Mark { text, kind } if of_process => match self.range(text, kind)? {
                Some(track) => track,
                None => return Ok(()),
            },
            Event::AllocFailed { .. } | Event::FreeFailed { .. } | Event::Mark { .. } => {
                self.thread(process, record.tid)?
            }
            _ => 0,
        };
        let instant = |category: &str, name: String| TrackEvent {
            kind: INSTANT,
            track_uuid: track,
            categories: vec![category.to_owned()],
            name: Some(name),
            ..TrackEvent::default()
        };
        match record.event {
            Event::Measured {
                mem_info: Some(info), ..
            } => self.count(now, record.device, Counter::Free, info.free),
            Event::Host(memory) => self.count(now, HOST_DEVICE, Counter::Resident, memory.resident),
            Event::AllocFailed { requested, result, .. } => {
                let api = api_name(record.api.number());
                let failed = instant("failure", format!("{api} of {} failed", size(requested)));
                let annotations = self.failure(process, record, requested, result);
                self.event(
                    now,
                    TrackEvent {
                        debug_annotations: annotations,
                        ..failed
                    },
                )
            }
            Event::FreeFailed { .. } => {
                let name = format!("{} failed", api_name(record.api.number()));
                self.event(now, instant("failure", name))
            }
            Event::Mark { text, kind } => {
                let marked = instant("mark", process.text(text).to_owned());
                let event = match kind {
                    MarkKind::Instant => marked,
                    MarkKind::Begin => TrackEvent {
                        kind: SLICE_BEGIN,
                        ..marked
                    },
                    MarkKind::End => TrackEvent {
                        kind: SLICE_END,
                        name: None,
                        ..marked
                    },
                };
                self.event(now, event)
            }
            _ => Ok(()),
        }
    }

    fn failure(&self, process: &Process, record: &Record, requested: u64, result: i32) -> Vec<DebugAnnotation> {
        let stack = process.frames(record.stack).iter().map(|frame| {
            let (file, line, function) = (&frame.file, frame.line, &frame.function);
            format!("{function} ({file}:{line})")
        });
        let stack: Vec<String> = stack.collect();
        let text = |name: &str, value: String| DebugAnnotation {
            name: Some(name.to_owned()),
            string_value: Some(value),
            ..DebugAnnotation::default()
        };
        let mut annotations = vec![
            DebugAnnotation {
                name: Some("requested".to_owned()),
                uint_value: Some(requested),
                ..DebugAnnotation::default()
            },
            text("result", result_name(result)),
            text("device", memory_name(record.device)),
        ];
        if !stack.is_empty() {
            annotations.push(text("stack", stack.join("\n")));
        }
        annotations
    }
}
