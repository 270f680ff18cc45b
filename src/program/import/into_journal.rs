//! Writes a journal, and the file of stacks beside it, from PyTorch's snapshot or RMM's log.
//!
//! PyTorch's segments become segments of a policy, and its blocks the allocations inside them. What was live before
//! PyTorch recorded is found by playing the trace backwards from the segments at its end, and is allocated at time 0.

use std::collections::HashMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use base::api::Api;
use base::cuda::HOST_DEVICE;
use base::text::shown;
use journal::format::{Allocation, Event, FrameworkRequest, MarkKind, RawRecord};
use journal::writer::About;

use super::plain_file::Wrong;
use super::rmm_log::{self, Action as LogAction, End};
use super::snapshot::{self, Action, Segment, Snapshot, StackNumber};
use super::stack_file::Texts;
use super::target::Target;
use crate::analysis::job::IMPORTED;
use crate::analysis::ranges::Ranges;

/// PyTorch's allocator serves multiples of this many bytes.
const PYTORCHS_STEP: u64 = 512;

#[derive(Debug, Default)]
pub struct Imported {
    pub events: u64,
    pub stacks: u64,
    pub notes: Vec<String>,
}

pub fn import_snapshot(source: &Path, path: &Path, force: bool) -> Result<Imported, Wrong> {
    let (page, stacks) = snapshot::read(source).map_err(|problem| of(source, &problem))?;
    if page.device_traces.iter().all(Vec::is_empty) && page.segments.is_empty() {
        return Err(of(source, "has neither segments nor a history"));
    }
    let times = || page.device_traces.iter().flatten().filter_map(|event| event.time_us);
    let marks = || page.external_annotations.iter().filter_map(|mark| mark.time_us);
    let first_us = times().chain(marks()).min().unwrap_or(0);
    let last_us = times().chain(marks()).max().unwrap_or(0);
    let mut notes = Vec::new();
    let mut about = about(source, "PyTorch", first_us.saturating_mul(1000));
    let conf = page.allocator_settings.conf.replace('\0', "");
    if !conf.is_empty() {
        about.environment = format!("PYTORCH_CUDA_ALLOC_CONF={conf}\0").into_bytes();
    }
    let mut target = Target::create(path, force, &about)?;
    let mut texts = Texts::default();
    let mut writer = SnapshotWriter {
        page: &page,
        first_us,
        records: Vec::new(),
        begins_late: false,
        unmatched: 0,
    };
    writer.write_marks(&mut texts);
    for device in writer.devices() {
        writer.write_device(device);
    }
    match times().next() {
        None => notes.push("the snapshot has no history: the journal has what was live, at one moment".to_owned()),
        Some(_) if writer.begins_late => notes.push(
            "memory was in use before the history begins: what came and went before is not known, so peaks are at least what is \
             told"
                .to_owned(),
        ),
        Some(_) => {}
    }
    // A reader puts records in order, but not the whole of one device before the whole of another.
    writer.records.sort_by_key(|(time_ns, _)| *time_ns);
    for (time_ns, record) in &writer.records {
        target.push(*time_ns, 0, *record)?;
    }
    if writer.unmatched > 0 {
        notes.push(format!(
            "{} events contradict the snapshot's segments and are left out",
            writer.unmatched
        ));
    }
    let end_ns = last_us.saturating_sub(first_us).saturating_mul(1000);
    let events = target.finish(end_ns, Some((&stacks, &texts)))?;
    Ok(Imported {
        events,
        stacks: stacks.stacks.list.len() as u64,
        notes,
    })
}

fn of(source: &Path, problem: &str) -> Wrong {
    format!("{}: {problem}", shown(source))
}

fn about(source: &Path, strategy: &str, wall_start_ns: u64) -> About {
    About {
        wall_start_ns,
        job: source.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        strategy: strategy.to_owned(),
        host: IMPORTED.to_owned(),
        ..About::default()
    }
}

struct SnapshotWriter<'s> {
    page: &'s Snapshot,
    first_us: u64,
    records: Vec<(u64, RawRecord)>,
    /// A device had memory before its history begins, or has no history.
    begins_late: bool,
    unmatched: u64,
}

/// Streams have pointers in a snapshot and numbers in a journal: 1 is the default stream, 2 to 254 are others in the
/// order of their first use.
#[derive(Default)]
struct Streams(HashMap<u64, u8>);

impl Streams {
    fn number(&mut self, pointer: Option<u64>) -> u8 {
        match pointer {
            None => 0,
            Some(0) => 1,
            Some(pointer) => {
                let next = u8::try_from(self.0.len() + 2).unwrap_or(u8::MAX);
                *self.0.entry(pointer).or_insert(next)
            }
        }
    }
}

/// What the sizes of blocks on a device are multiples of: 512 bytes in PyTorch's snapshots, but not in those that
/// `vramshim export` made of other memory.
fn step(segments: &[&Segment], events: &[snapshot::Event]) -> u64 {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let sizes = blocks.flat_map(|block| [block.address, block.size]).flatten();
    let ranges = segments
        .iter()
        .flat_map(|segment| [segment.address, segment.total_size])
        .flatten();
    let traced = events.iter().flat_map(|event| match event.action {
        Action::SegmentAlloc | Action::SegmentFree => [event.addr, event.size],
        _ => [event.addr, None],
    });
    let mut all = sizes.chain(ranges).chain(traced.flatten());
    if all.all(|number| number.is_multiple_of(PYTORCHS_STEP)) {
        PYTORCHS_STEP
    } else {
        1
    }
}

impl SnapshotWriter<'_> {
    fn devices(&self) -> Vec<i16> {
        let of_segments = self.page.segments.iter().filter_map(|segment| segment.device);
        let traced = (0..)
            .zip(&self.page.device_traces)
            .filter(|(_, events)| !events.is_empty());
        let mut devices: Vec<i16> = of_segments.chain(traced.map(|(device, _)| device)).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    fn since_ns(&self, time_us: Option<u64>) -> u64 {
        time_us.map_or(0, |us| us.saturating_sub(self.first_us).saturating_mul(1000))
    }

    fn write_marks(&mut self, texts: &mut Texts) {
        for mark in &self.page.external_annotations {
            let kind = match &*mark.stage {
                "START" => MarkKind::Begin,
                "END" => MarkKind::End,
                _ => MarkKind::Instant,
            };
            let text = texts.place(mark.name.to_string()) as u64 + 1;
            let record = Event::Mark { text, kind }.encode(Api::vramshim_mark, HOST_DEVICE);
            self.records.push((self.since_ns(mark.time_us), record));
        }
    }

    fn write_device(&mut self, device: i16) {
        let page = self.page;
        let events = page.events_of(device);
        let mut streams = Streams::default();
        let step = step(&page.segments_of(device).collect::<Vec<_>>(), events);
        let rounded = |size: u64| size.max(1).checked_next_multiple_of(step).unwrap_or(size);
        // Backwards to the segments before the first event.
        let mut segments = Ranges::default();
        for segment in page.segments_of(device) {
            if let (Some(address), Some(size)) = (segment.address, segment.total_size) {
                segments.insert(address, address.saturating_add(size));
            }
        }
        for event in events.iter().rev() {
            let (Some(address), Some(size)) = (event.addr, event.size) else {
                continue;
            };
            let end = address.saturating_add(size);
            if matches!(event.action, Action::SegmentAlloc | Action::SegmentFree) {
                segments.cut(address, end);
            }
            if event.action == Action::SegmentFree {
                segments.insert(address, end);
            }
        }
        for (address, end) in segments.iter() {
            self.write_before(device, Event::segment(address, end - address), StackNumber::default());
        }
        let mut live = HashMap::new();
        for (address, one) in page.live_before(device) {
            let allocated = one.allocated.unwrap_or_else(|| rounded(one.requested));
            let allocation = Allocation::linear(address, one.requested, allocated, streams.number(one.stream));
            self.write_before(device, Event::Alloc(allocation), one.frames);
            live.insert(address, (allocation, one.frames));
        }
        let at_end = page.live_at_end(device);
        // The last allocation at an address that is live at the end has the size of its block there.
        let mut last: HashMap<u64, usize> = HashMap::new();
        for (number, event) in events.iter().enumerate() {
            if let (Action::Alloc, Some(address)) = (event.action, event.addr)
                && at_end.contains_key(&address)
            {
                last.insert(address, number);
            }
        }
        for (number, event) in events.iter().enumerate() {
            let time_ns = self.since_ns(event.time_us);
            let (size, mut stack) = (event.size.unwrap_or(0), event.frames);
            let what = match (event.action, event.addr) {
                (Action::Alloc, Some(address)) => {
                    let known = at_end.get(&address).filter(|_| last.get(&address) == Some(&number));
                    let allocated = known.and_then(|block| block.allocated).unwrap_or_else(|| rounded(size));
                    let allocation = Allocation::linear(address, size, allocated, streams.number(event.stream));
                    live.insert(address, (allocation, stack));
                    Event::Alloc(allocation)
                }
                (Action::FreeCompleted, Some(address)) => {
                    let Some((allocation, asked_by)) = live.remove(&address) else {
                        self.unmatched += 1;
                        continue;
                    };
                    stack = asked_by;
                    Event::free(allocation)
                }
                (Action::SegmentAlloc, Some(address)) => Event::segment(address, size),
                (Action::SegmentFree, Some(address)) => Event::segment_gone(address, size),
                (Action::OutOfMemory, _) => {
                    let told = FrameworkRequest {
                        requested: Some(size),
                        asks_again: None,
                        // `vramshim export` writes 0 if it is not known.
                        free: event.device_free.filter(|&free| free > 0),
                    };
                    self.write(time_ns, device, Event::FrameworkRequest(told), stack);
                    Event::out_of_memory(size)
                }
                _ => continue,
            };
            self.write(time_ns, device, what, stack);
        }
    }

    fn write(&mut self, time_ns: u64, device: i16, event: Event, stack: StackNumber) {
        let api = match event {
            Event::Free { .. } => Api::torch_free,
            Event::SegmentAlloc { .. } => Api::torch_segment_alloc,
            Event::SegmentFree { .. } => Api::torch_segment_free,
            _ => Api::torch_alloc,
        };
        self.records
            .push((time_ns, event.encode(api, device).with_stack(stack.0)));
    }

    /// What was there before the history begins.
    fn write_before(&mut self, device: i16, event: Event, stack: StackNumber) {
        self.begins_late = true;
        self.records
            .push((0, event.encode(Api::torch_before, device).with_stack(stack.0)));
    }
}

/// The beginning of a log's first day, in nanoseconds since 1970 (UTC): the latest with which the log's last event, at
/// `last_ns` since that beginning, is not after the change of the file.
fn first_day_ns(changed_ns: u64, last_ns: u64) -> u64 {
    const DAY_NS: u64 = 86_400_000_000_000;
    /// The time of a file may be rounded down to seconds.
    const ROUNDED_NS: u64 = 2_000_000_000;
    let latest_ns = changed_ns.saturating_add(ROUNDED_NS).saturating_sub(last_ns);
    latest_ns / DAY_NS * DAY_NS
}

/// When a file was last changed, in nanoseconds since 1970; 0 if that is not known.
fn changed_ns(source: &Path) -> u64 {
    let changed = std::fs::metadata(source).and_then(|metadata| metadata.modified()).ok();
    let since = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

/// Writes a journal of RMM's log. The log has times of the day and no date: its last row is of the day of the file's last change.
pub fn import_log(source: &Path, path: &Path, force: bool) -> Result<Imported, Wrong> {
    // The journal's start is in its header, before the first event, so the log is read for its times first.
    let (mut first_ns, mut last_ns) = (None, 0);
    let _ = rmm_log::read(source, &mut |row| {
        first_ns = first_ns.or(Some(row.at_ns));
        last_ns = row.at_ns.unwrap_or(0).max(last_ns);
    });
    let first_ns = first_ns.flatten();
    let day_ns = first_day_ns(changed_ns(source), last_ns);
    let start_ns = first_ns.map_or(0, |first_ns| day_ns.saturating_add(first_ns));
    let about = about(source, "RMM", start_ns);
    let mut target = Target::create(path, force, &about)?;
    let mut live: HashMap<u64, Allocation> = HashMap::new();
    let mut streams = Streams::default();
    let (mut now_ns, mut unmatched, mut rows) = (0u64, 0u64, 0u64);
    let mut failed = None;
    let end = rmm_log::read(source, &mut |row| {
        rows += 1;
        let since_ns = row.at_ns.map(|at_ns| at_ns.saturating_sub(first_ns.unwrap_or(0)));
        // Without times, the order is kept.
        now_ns = since_ns.unwrap_or(rows * 1000);
        let event = match row.action {
            LogAction::Allocate { pointer, size, stream } => {
                let allocation = Allocation::linear(pointer, size, size, streams.number(Some(stream)));
                live.insert(pointer, allocation);
                Event::Alloc(allocation)
            }
            LogAction::Free { pointer, stream } => match live.remove(&pointer) {
                Some(allocation) => {
                    let freed_on = stream.map(|stream| streams.number(Some(stream)));
                    let stream = match freed_on {
                        // As in the library's journals: a free names a stream if no other has used the memory.
                        Some(freed_on) if freed_on != allocation.stream => 0,
                        _ => allocation.stream,
                    };
                    Event::free(Allocation { stream, ..allocation })
                }
                None => {
                    unmatched += 1;
                    return;
                }
            },
            LogAction::Failure { size, .. } => Event::out_of_memory(size),
        };
        let api = match event {
            Event::Free { .. } => Api::rmm_deallocate,
            _ => Api::rmm_allocate,
        };
        if failed.is_none() {
            failed = target.push(now_ns, row.thread, event.encode(api, 0)).err();
        }
    });
    let end = end.map_err(|problem| of(source, &problem))?;
    failed.map_or(Ok(()), Err)?;
    let mut notes =
        vec!["the log names no device and no segments: all is of device 0, reserved is not known".to_owned()];
    match end {
        End::Cut(problem) if rows == 0 => return Err(of(source, &problem)),
        End::Cut(problem) => notes.push(format!("{problem}; what comes before is imported")),
        End::Whole => {}
    }
    if unmatched > 0 {
        notes.push(format!("{unmatched} frees had no allocation and are left out"));
    }
    let events = target.finish(now_ns, None)?;
    Ok(Imported {
        events,
        stacks: 0,
        notes,
    })
}
