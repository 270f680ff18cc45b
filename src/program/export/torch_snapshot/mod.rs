//! The snapshot of `torch.cuda.memory._snapshot()`, which PyTorch's `_memory_viz.py` and MemoryViz
//! (<https://pytorch.org/memory_viz>) read: the segments and blocks at a moment, and the trace of the events until then.
//!
//! `device` turns records into segments, blocks and entries of the trace, and `pickle_writer` writes the opcodes that MemoryViz
//! reads. The records are read once for the devices and marks, and once for each device.

mod device;
mod pickle_writer;

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};

use journal::format::{Event, MarkKind, Record};

use self::device::{Device, Entry};
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

/// Returns the number of entries of the trace.
pub fn write(process: &Process, cut: Cut, out: &mut dyn Write, progress: &dyn Fn(u64)) -> io::Result<u64> {
    let mut devices = BTreeSet::new();
    let mut annotations = Vec::new();
    process.each(progress, |count, record| {
        if count >= cut {
            return Ok(());
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
    let snapshot = Snapshot {
        process,
        stacks: HashMap::new(),
        pickle: Pickle::new(out)?,
    };
    snapshot.write(&devices, &annotations, cut, progress)
}

struct Snapshot<'s, 'w> {
    process: &'s Process,
    stacks: HashMap<u32, Kept>,
    pickle: Pickle<'w>,
}

impl Snapshot<'_, '_> {
    fn write(
        mut self,
        known: &BTreeSet<i16>,
        annotations: &[Annotation],
        cut: Cut,
        progress: &dyn Fn(u64),
    ) -> io::Result<u64> {
        let Snapshot {
            process,
            stacks,
            pickle,
        } = &mut self;
        let devices = known.last().map_or(0, |&last| last as usize + 1);
        let expandable = process.has_expandable_segments();
        let mut entries = 0;
        let mut ended = Vec::new();
        pickle.open_dictionary()?;
        pickle.entry("device_traces", |pickle| {
            pickle.lists(devices, |number, list| {
                let number = number as i16;
                if !known.contains(&number) {
                    return Ok(());
                }
                let mut device = Device::new(number, expandable);
                process.each(progress, |count, record| {
                    if count >= cut {
                        return Ok(());
                    }
                    device.apply(record, &mut |entry| {
                        entries += 1;
                        add_entry(list, process, stacks, record, entry)
                    })
                })?;
                device.finish();
                ended.push((number, device));
                Ok(())
            })
        })?;
        pickle.entry("segments", |pickle| {
            pickle.list(|list| {
                let mut each = ended.iter();
                each.try_for_each(|(number, device)| add_segments(list, process, stacks, *number, device))
            })
        })?;
        drop(ended);
        pickle.entry("allocator_settings", |pickle| settings(pickle, process, expandable))?;
        pickle.entry("external_annotations", |pickle| {
            pickle.list(|list| {
                let device = known.first().copied().unwrap_or(0);
                annotations.iter().try_for_each(|annotation| {
                    list.item(|pickle| {
                        pickle.dictionary(|pickle| {
                            pickle.text_at("name", process.text(annotation.text))?;
                            pickle.text_at("stage", if annotation.starts { "START" } else { "END" })?;
                            pickle.number_at("device", device as u64)?;
                            pickle.number_at("time_us", annotation.unix_us)
                        })
                    })
                })
            })
        })?;
        self.pickle.finish()?;
        Ok(entries)
    }
}

/// The frames of a stack: the same list wherever the stack occurs.
fn add_frames(pickle: &mut Pickle, process: &Process, stacks: &mut HashMap<u32, Kept>, stack: u32) -> io::Result<()> {
    let frames = process.frames(stack);
    // All stacks without frames are one.
    let number = if frames.is_empty() { 0 } else { stack };
    if let Some(&kept) = stacks.get(&number) {
        return pickle.again(kept);
    }
    pickle.list(|list| {
        frames.iter().try_for_each(|frame| {
            list.item(|pickle| {
                pickle.dictionary(|pickle| {
                    pickle.text_at("name", &frame.function)?;
                    pickle.text_at("filename", &frame.file)?;
                    pickle.number_at("line", frame.line)
                })
            })
        })
    })?;
    stacks.insert(number, pickle.keep()?);
    Ok(())
}

fn add_entry(
    list: &mut List<'_, '_>,
    process: &Process,
    stacks: &mut HashMap<u32, Kept>,
    record: &Record,
    entry: Entry,
) -> io::Result<()> {
    list.item(|pickle| {
        pickle.dictionary(|pickle| {
            let place = if entry.action == "oom" { "device_free" } else { "addr" };
            pickle.text_at("action", entry.action)?;
            pickle.number_at(place, entry.place)?;
            pickle.number_at("size", entry.size)?;
            pickle.number_at("stream", entry.stream)?;
            pickle.number_at("time_us", process.unix_ns(record.time_ns) / 1000)?;
            pickle.text_at("compile_context", "N/A")?;
            pickle.text_at("user_metadata", "")?;
            pickle.no_pool_at("pool_id")?;
            pickle.text("frames")?;
            add_frames(pickle, process, stacks, entry.stack)
        })
    })
}

/// A segment of at most so many bytes is one for small tensors, as in PyTorch.
const SMALL_BYTES: u64 = 2 << 20;

fn add_segments(
    list: &mut List<'_, '_>,
    process: &Process,
    stacks: &mut HashMap<u32, Kept>,
    number: i16,
    device: &Device,
) -> io::Result<()> {
    for (address, segment) in device.joined() {
        let end = address.saturating_add(segment.size);
        let blocks = || device.blocks.range(address..end).map(|(&start, block)| (start, *block));
        let (allocated, requested) = blocks().fold((0u64, 0u64), |(allocated, requested), (_, block)| {
            (
                allocated.saturating_add(block.size),
                requested.saturating_add(block.requested),
            )
        });
        list.item(|pickle| {
            pickle.dictionary(|pickle| {
                pickle.number_at("device", number as u64)?;
                pickle.number_at("address", address)?;
                pickle.number_at("total_size", segment.size)?;
                pickle.number_at("allocated_size", allocated)?;
                pickle.number_at("active_size", allocated)?;
                pickle.number_at("requested_size", requested)?;
                pickle.number_at("stream", segment.stream())?;
                let kind = if segment.size <= SMALL_BYTES { "small" } else { "large" };
                pickle.text_at("segment_type", kind)?;
                pickle.no_pool_at("segment_pool_id")?;
                pickle.boolean_at("is_expandable", segment.expandable)?;
                pickle.text("frames")?;
                add_frames(pickle, process, stacks, segment.stack)?;
                pickle.text("blocks")?;
                pickle.list(|list| {
                    let mut at = address;
                    for (start, block) in blocks() {
                        add_free(list, process, stacks, at, start)?;
                        add_block(
                            list,
                            process,
                            stacks,
                            start,
                            block.size,
                            Some((block.requested, block.stack)),
                        )?;
                        at = start + block.size;
                    }
                    add_free(list, process, stacks, at, end)
                })
            })
        })?;
    }
    Ok(())
}

fn add_free(
    list: &mut List<'_, '_>,
    process: &Process,
    stacks: &mut HashMap<u32, Kept>,
    start: u64,
    end: u64,
) -> io::Result<()> {
    if start >= end {
        return Ok(());
    }
    add_block(list, process, stacks, start, end - start, None)
}

/// Writes a block. `live` has the requested bytes and the stack of a live one.
fn add_block(
    list: &mut List<'_, '_>,
    process: &Process,
    stacks: &mut HashMap<u32, Kept>,
    address: u64,
    size: u64,
    live: Option<(u64, u32)>,
) -> io::Result<()> {
    list.item(|pickle| {
        pickle.dictionary(|pickle| {
            let (requested, stack) = live.unwrap_or((0, 0));
            pickle.number_at("address", address)?;
            pickle.number_at("size", size)?;
            pickle.number_at("requested_size", requested)?;
            pickle.text_at("state", if live.is_some() { "active_allocated" } else { "inactive" })?;
            pickle.text("frames")?;
            add_frames(pickle, process, stacks, stack)
        })
    })
}

/// The settings that a reader of snapshots asks for.
fn settings(pickle: &mut Pickle, process: &Process, expandable: bool) -> io::Result<()> {
    let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
    let mut environment = process.header().environment.iter();
    let found = environment.find(|(name, _)| names.contains(&name.as_str()));
    pickle.dictionary(|pickle| {
        pickle.text(names[0])?;
        pickle.text_once(found.map_or("", |(_, value)| value.as_str()))?;
        pickle.boolean_at("expandable_segments", expandable)
    })
}
