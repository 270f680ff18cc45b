//! Perfetto's trace (TrackEvent): for each process and device the counters `live` and `reserved` in bytes, `free` as
//! the next layer measured it, instants for failures and marks, and slices for ranges. Times are nanoseconds since
//! 1970.
//!
//! The messages are those of <https://github.com/google/perfetto/tree/main/protos/perfetto/trace>, with the fields that
//! are written here.

use std::collections::HashMap;
use std::io::{self, Write};

use base::api::Api;
use base::cuda::HOST_DEVICE;
use base::units::size;
use journal::format::{Event, MarkKind, Record};

use super::exported_process::Process;
use super::memory_name;
use crate::analysis::ledger::{Ledger, device_of};
use crate::analysis::names::{api_name, result_name};

/// A message of protocol buffers that is being written: keys and values, one after another.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Message {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Message {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn text(self, field: u64, value: &str) -> Message {
        self.bytes(field, value.as_bytes())
    }

    fn message(self, field: u64, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }
}

// Fields of Trace, TracePacket, TrackEvent, DebugAnnotation, TrackDescriptor and the descriptors in it, by their names there.
const PACKET: u64 = 1;
const TIMESTAMP: u64 = 8;
const TRUSTED_PACKET_SEQUENCE_ID: u64 = 10;
const TRACK_EVENT: u64 = 11;
const TRACK_DESCRIPTOR: u64 = 60;
const EVENT_DEBUG_ANNOTATIONS: u64 = 4;
const EVENT_TYPE: u64 = 9;
const EVENT_TRACK_UUID: u64 = 11;
const EVENT_CATEGORIES: u64 = 22;
const EVENT_NAME: u64 = 23;
const EVENT_COUNTER_VALUE: u64 = 30;
const ANNOTATION_UINT_VALUE: u64 = 3;
const ANNOTATION_STRING_VALUE: u64 = 6;
const ANNOTATION_NAME: u64 = 10;
const TRACK_UUID: u64 = 1;
const TRACK_NAME: u64 = 2;
const TRACK_PROCESS: u64 = 3;
const TRACK_THREAD: u64 = 4;
const TRACK_PARENT_UUID: u64 = 5;
const TRACK_COUNTER: u64 = 8;
const PROCESS_PID: u64 = 1;
const PROCESS_CMDLINE: u64 = 2;
const PROCESS_NAME: u64 = 6;
const THREAD_PID: u64 = 1;
const THREAD_TID: u64 = 2;
const COUNTER_UNIT: u64 = 3;

// Values of TrackEvent.Type and of CounterDescriptor.Unit.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;
const SIZE_BYTES: u64 = 3;

/// Where a failure, a mark or a range is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Thread(u32),
    /// A range that may end on another thread than it began on, by its text. Ranges with different texts may overlap, and
    /// slices of one track may not.
    Range(u64),
}

pub struct Writer<'w> {
    out: &'w mut dyn Write,
    next: u64,
    /// Which process is written, from 1.
    sequence: u64,
    process: u64,
    /// By device and name: the track, and the value that was written last.
    counters: HashMap<(i16, &'static str), (u64, u64)>,
    /// The tracks of failures and marks.
    tracks: HashMap<Place, u64>,
    ledger: Ledger,
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write) -> Writer<'w> {
        Writer {
            out,
            next: 1,
            sequence: 0,
            process: 0,
            counters: HashMap::new(),
            tracks: HashMap::new(),
            ledger: Ledger::default(),
        }
    }

    fn write(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(TRUSTED_PACKET_SEQUENCE_ID, self.sequence);
        // A trace is a sequence of packets, so it can be written while it is made.
        let trace = Message::default().message(PACKET, &packet);
        self.out.write_all(&trace.0)
    }

    fn describe(&mut self, track: Message) -> io::Result<u64> {
        let uuid = self.next;
        self.next += 1;
        let track = track.number(TRACK_UUID, uuid);
        self.write(Message::default().message(TRACK_DESCRIPTOR, &track))?;
        Ok(uuid)
    }

    /// A track below that of the process.
    fn track(&self) -> Message {
        Message::default().number(TRACK_PARENT_UUID, self.process)
    }

    /// What follows is of this process.
    pub fn process(&mut self, process: &Process) -> io::Result<()> {
        self.sequence += 1;
        self.counters.clear();
        self.tracks.clear();
        self.ledger = Ledger::default();
        let header = process.journal.header();
        let mut about = Message::default().number(PROCESS_PID, header.pid.into());
        for word in &header.command_line {
            about = about.text(PROCESS_CMDLINE, word);
        }
        let about = about.text(PROCESS_NAME, &process.title());
        self.process = self.describe(Message::default().message(TRACK_PROCESS, &about))?;
        for device in &header.devices {
            if let (Some(limit), Ok(ordinal)) = (device.limit, i16::try_from(device.ordinal)) {
                self.count(header.wall_start_ns, ordinal, "limit", limit)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, timestamp: u64, device: i16, counter: &'static str, value: u64) -> io::Result<()> {
        let track = match self.counters.get(&(device, counter)) {
            Some(&(_, last)) if last == value => return Ok(()),
            Some(&(track, _)) => track,
            None => {
                let name = format!("{} {}", memory_name(device), counter);
                let unit = Message::default().number(COUNTER_UNIT, SIZE_BYTES);
                let track = self.track().text(TRACK_NAME, &name);
                self.describe(track.message(TRACK_COUNTER, &unit))?
            }
        };
        self.counters.insert((device, counter), (track, value));
        let event = event(COUNTER, track).number(EVENT_COUNTER_VALUE, value.min(i64::MAX as u64));
        self.event(timestamp, &event)
    }

    fn event(&mut self, timestamp: u64, event: &Message) -> io::Result<()> {
        let packet = Message::default().number(TIMESTAMP, timestamp);
        self.write(packet.message(TRACK_EVENT, event))
    }

    fn track_of(&mut self, process: &Process, place: Place) -> io::Result<u64> {
        if let Some(&track) = self.tracks.get(&place) {
            return Ok(track);
        }
        let new = match place {
            Place::Thread(tid) => {
                let thread = Message::default().number(THREAD_PID, process.journal.header().pid.into());
                self.track()
                    .message(TRACK_THREAD, &thread.number(THREAD_TID, tid.into()))
            }
            Place::Range(_) => self.track().text(TRACK_NAME, "ranges"),
        };
        let track = self.describe(new)?;
        self.tracks.insert(place, track);
        Ok(track)
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        let now = process.unix_ns(record.time_ns);
        self.ledger.apply(record);
        let device = device_of(record);
        let levels = self.ledger.devices.get(&device).map(|ledger| ledger.all);
        if let Some(all) = levels
            && all.count > 0
        {
            self.count(now, device, "live", all.allocated.current)?;
            // An imported log does not tell it.
            if all.reserved.peak > 0 {
                self.count(now, device, "reserved", all.reserved.current)?;
            }
        }
        let of_process = matches!(record.api.known(), Some(Api::nvtxRangeStart | Api::nvtxRangeEnd));
        let track = match record.event {
            Event::Mark { text, .. } if of_process => self.track_of(process, Place::Range(text))?,
            Event::AllocFailed { .. } | Event::FreeFailed { .. } | Event::Mark { .. } => {
                self.track_of(process, Place::Thread(record.tid))?
            }
            _ => 0,
        };
        let named = |kind: u64, category: &str, name: &str| {
            let event = event(kind, track).text(EVENT_CATEGORIES, category);
            event.text(EVENT_NAME, name)
        };
        match record.event {
            Event::Measured {
                mem_info: Some(info), ..
            } => self.count(now, record.device, "free (measured)", info.free),
            Event::Host(memory) => self.count(now, HOST_DEVICE, "resident", memory.resident),
            Event::AllocFailed { requested, result, .. } => {
                let name = format!("{} of {} failed", api_name(record.api.number()), size(requested));
                let annotations = failure(process, record, requested, result).into_iter();
                let failed = annotations.fold(named(INSTANT, "failure", &name), |event, one| {
                    event.message(EVENT_DEBUG_ANNOTATIONS, &one)
                });
                self.event(now, &failed)
            }
            Event::FreeFailed { .. } => {
                let name = format!("{} failed", api_name(record.api.number()));
                self.event(now, &named(INSTANT, "failure", &name))
            }
            Event::Mark { text, kind } => {
                let name = process.text(text);
                let marked = match kind {
                    MarkKind::Instant => named(INSTANT, "mark", name),
                    MarkKind::Begin => named(SLICE_BEGIN, "mark", name),
                    MarkKind::End => event(SLICE_END, track),
                };
                self.event(now, &marked)
            }
            _ => Ok(()),
        }
    }
}

fn event(kind: u64, track: u64) -> Message {
    let event = Message::default().number(EVENT_TYPE, kind);
    event.number(EVENT_TRACK_UUID, track)
}

/// What a failure says of itself.
fn failure(process: &Process, record: &Record, requested: u64, result: i32) -> Vec<Message> {
    let named = |name: &str| Message::default().text(ANNOTATION_NAME, name);
    let text = |name: &str, value: &str| named(name).text(ANNOTATION_STRING_VALUE, value);
    let stack = process.frames(record.stack).iter().map(|frame| {
        let (file, line, function) = (&frame.file, frame.line, &frame.function);
        format!("{function} ({file}:{line})")
    });
    let stack: Vec<String> = stack.collect();
    let mut annotations = vec![
        named("requested").number(ANNOTATION_UINT_VALUE, requested),
        text("result", &result_name(result)),
        text("device", &memory_name(record.device)),
    ];
    if !stack.is_empty() {
        annotations.push(text("stack", &stack.join("\n")));
    }
    annotations
}
