//! The snapshot of `torch.cuda.memory._snapshot()`, which PyTorch's `_memory_viz.py` and MemoryViz
//! (<https://pytorch.org/memory_viz>) read: the segments and blocks at a moment, and the trace of the events until then.
//!
//! `device` turns records into segments, blocks and entries of the trace, and `pickle_writer` writes the opcodes that MemoryViz
//! reads. The records are read once for marks and one device, and once for each other device.

mod device;
mod pickle_writer;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, Write};

use journal::format::{Event, MarkKind, Record};

use self::device::{Block, Device, Entry};
use self::pickle_writer::{Kept, List, Pickle};
use super::exported_process::Process;
use super::moment::Cut;

/// Ranges and moments that the job named.
struct Annotation {
    text: u64,
    starts: bool,
    unix_us: u64,
}

/// Marks beyond this number are left out.
const MOST_ANNOTATIONS: usize = 1 << 20;

/// A device's trace has its last entries: MemoryViz is slow with more. PyTorch's own recorder forgets the oldest, too.
const MOST_ENTRIES: usize = 1_000_000;

/// How many entries of traces were written, and how many older ones are left out.
#[derive(Clone, Copy, Default)]
pub struct Written {
    pub entries: u64,
    pub left_out: u64,
}

/// What is read of one device.
struct Trace {
    device: Device,
    /// Times in nanoseconds since the journal began, and entries.
    last: VecDeque<(u64, Entry)>,
    left_out: u64,
}

impl Trace {
    fn new(number: i16, expandable: bool) -> Trace {
        Trace {
            device: Device::new(number, expandable),
            last: VecDeque::new(),
            left_out: 0,
        }
    }

    fn add(&mut self, record: &Record) {
        self.device.apply(record);
        let entries = self.device.entries.drain(..);
        self.last.extend(entries.map(|entry| (record.time_ns, entry)));
        let older = self.last.len().saturating_sub(MOST_ENTRIES);
        self.left_out += self.last.drain(..older).len() as u64;
    }
}

pub fn write(process: &Process, cut: Cut, out: &mut dyn Write) -> io::Result<Written> {
    let expandable = process.has_expandable_segments();
    let mut devices = BTreeSet::new();
    let mut annotations = Vec::new();
    let mut first: Option<Trace> = None;
    process.each(|count, record| {
        if count >= cut {
            return Ok(());
        }
        if record.device >= 0 {
            first
                .get_or_insert_with(|| Trace::new(record.device, expandable))
                .add(record);
        }
        match record.event {
            Event::Mark { text, kind } if annotations.len() < MOST_ANNOTATIONS => {
                let unix_us = process.unix_ns(record.time_ns) / 1000;
                for starts in [true, false] {
                    if kind == MarkKind::Instant || starts == (kind == MarkKind::Begin) {
                        annotations.push(Annotation { text, starts, unix_us });
                    }
                }
            }
            _ => drop(devices.insert(record.device)),
        }
        Ok(())
    })?;
    devices.retain(|&device| device >= 0);
    let mut writer = Writer {
        process,
        stacks: HashMap::new(),
    };
    let mut pickle = Pickle::new(out)?;
    let (mut written, mut ended) = (Written::default(), Vec::new());
    pickle.open_dictionary()?;
    pickle.entry("device_traces", |pickle| {
        pickle.lists(devices.last().map_or(0, |&last| last as usize + 1), |number, list| {
            let number = number as i16;
            if !devices.contains(&number) {
                return Ok(());
            }
            let trace = match first.take_if(|trace| trace.device.number == number) {
                Some(trace) => trace,
                None => {
                    let mut trace = Trace::new(number, expandable);
                    process.each(|count, record| {
                        if count < cut {
                            trace.add(record);
                        }
                        Ok(())
                    })?;
                    trace
                }
            };
            let Trace {
                mut device,
                last,
                left_out,
            } = trace;
            written.left_out += left_out;
            written.entries += last.len() as u64;
            last.into_iter()
                .try_for_each(|(time_ns, entry)| writer.entry(list, time_ns, entry))?;
            device.finish();
            ended.push(device);
            Ok(())
        })
    })?;
    pickle.entry("segments", |pickle| {
        pickle.list(|list| {
            let mut each = ended.iter();
            each.try_for_each(|device| writer.segments(list, device))
        })
    })?;
    pickle.entry("allocator_settings", |pickle| settings(pickle, process, expandable))?;
    pickle.entry("external_annotations", |pickle| {
        pickle.list(|list| {
            let device = devices.first().copied().unwrap_or(0);
            annotations.iter().try_for_each(|annotation| {
                list.dictionary(|pickle| {
                    pickle.text_at("name", process.text(annotation.text))?;
                    pickle.text_at("stage", if annotation.starts { "START" } else { "END" })?;
                    pickle.number_at("device", device as u64)?;
                    pickle.number_at("time_us", annotation.unix_us)
                })
            })
        })
    })?;
    pickle.finish()?;
    Ok(written)
}

/// A segment of at most so many bytes is one for small tensors, as in PyTorch.
const SMALL_BYTES: u64 = 2 << 20;

struct Writer<'p> {
    process: &'p Process,
    /// The stacks that were written.
    stacks: HashMap<u32, Kept>,
}

impl Writer<'_> {
    /// The frames of a stack: the same list wherever the stack occurs.
    fn frames(&mut self, pickle: &mut Pickle, stack: u32) -> io::Result<()> {
        let frames = self.process.frames(stack);
        // All stacks without frames are one.
        let number = if frames.is_empty() { 0 } else { stack };
        pickle.text("frames")?;
        if let Some(&kept) = self.stacks.get(&number) {
            return pickle.again(kept);
        }
        pickle.list(|list| {
            frames.iter().try_for_each(|frame| {
                list.dictionary(|pickle| {
                    pickle.text_at("name", &frame.function)?;
                    pickle.text_at("filename", &frame.file)?;
                    pickle.number_at("line", frame.line)
                })
            })
        })?;
        self.stacks.insert(number, pickle.keep()?);
        Ok(())
    }

    fn entry(&mut self, list: &mut List, time_ns: u64, entry: Entry) -> io::Result<()> {
        list.dictionary(|pickle| {
            let place = if entry.action == "oom" { "device_free" } else { "addr" };
            pickle.text_at("action", entry.action)?;
            pickle.number_at(place, entry.place)?;
            pickle.number_at("size", entry.size)?;
            pickle.number_at("stream", entry.stream)?;
            pickle.number_at("time_us", self.process.unix_ns(time_ns) / 1000)?;
            pickle.text_at("compile_context", "N/A")?;
            pickle.text_at("user_metadata", "")?;
            pickle.no_pool_at("pool_id")?;
            self.frames(pickle, entry.stack)
        })
    }

    fn segments(&mut self, list: &mut List, device: &Device) -> io::Result<()> {
        for (address, segment) in device.joined() {
            let end = address.saturating_add(segment.size);
            let blocks = || device.blocks.range(address..end);
            let sum =
                |figure: fn(&Block) -> u64| blocks().fold(0u64, |sum, (_, block)| sum.saturating_add(figure(block)));
            let allocated = sum(|block| block.size);
            list.dictionary(|pickle| {
                pickle.number_at("device", device.number as u64)?;
                pickle.number_at("address", address)?;
                pickle.number_at("total_size", segment.size)?;
                pickle.number_at("allocated_size", allocated)?;
                pickle.number_at("active_size", allocated)?;
                pickle.number_at("requested_size", sum(|block| block.requested))?;
                pickle.number_at("stream", segment.stream())?;
                let kind = if segment.size <= SMALL_BYTES { "small" } else { "large" };
                pickle.text_at("segment_type", kind)?;
                pickle.no_pool_at("segment_pool_id")?;
                pickle.boolean_at("is_expandable", segment.expandable)?;
                self.frames(pickle, segment.stack)?;
                pickle.text("blocks")?;
                pickle.list(|list| {
                    let mut at = address;
                    for (&start, block) in blocks() {
                        self.block(list, at, start, None)?;
                        at = start + block.size;
                        self.block(list, start, at, Some(block))?;
                    }
                    self.block(list, at, end, None)
                })
            })?;
        }
        Ok(())
    }

    /// Writes a block, if it is not empty. `live` is what the block is, unless it is free.
    fn block(&mut self, list: &mut List, address: u64, end: u64, live: Option<&Block>) -> io::Result<()> {
        if address >= end {
            return Ok(());
        }
        list.dictionary(|pickle| {
            pickle.number_at("address", address)?;
            pickle.number_at("size", end - address)?;
            pickle.number_at("requested_size", live.map_or(0, |block| block.requested))?;
            pickle.text_at("state", if live.is_some() { "active_allocated" } else { "inactive" })?;
            self.frames(pickle, live.map_or(0, |block| block.stack))
        })
    }
}

/// The settings that a reader of snapshots asks for.
fn settings(pickle: &mut Pickle, process: &Process, expandable: bool) -> io::Result<()> {
    let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
    let found = names.iter().find_map(|name| process.journal.header().variable(name));
    pickle.dictionary(|pickle| {
        pickle.text(names[0])?;
        pickle.text_once(found.unwrap_or_default())?;
        pickle.boolean_at("expandable_segments", expandable)
    })
}
