//! PyTorch's tensors (`vramshim run --torch record`), joined with the journal by address: which lines of code held them
//! when they held the most, and what other code had allocated then.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;

use base::api::Class;
use journal::format::{Event, Frame, TensorEvent, TensorLine, line_of_the_job};
use journal::reader::{Journal, TensorFile};
use serde::{Serialize, Serializer};

use super::floors::Floors;
use super::names::frame_as_json;
use super::space::{Ranges, gaps};
use super::tensor_records;
use super::torch_cache::{TorchCache, length};

/// Tensors that the same line of code allocated.
#[derive(Serialize)]
pub struct Holder {
    /// The line: the innermost one that is not in an installed package.
    #[serde(rename = "line", serialize_with = "frame")]
    pub place: Option<Frame>,
    pub bytes: u64,
    pub tensors: u64,
    /// When the oldest of them was allocated, in nanoseconds since the journal began.
    pub oldest_ns: u64,
    /// The whole stack of the line's tensors with the most bytes, innermost frame first.
    #[serde(serialize_with = "frames")]
    pub stack: Vec<Frame>,
}

fn frame<S: Serializer>(frame: &Option<Frame>, serializer: S) -> Result<S::Ok, S::Error> {
    frame.as_ref().map(frame_as_json).serialize(serializer)
}

fn frames<S: Serializer>(frames: &[Frame], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(frames.iter().map(frame_as_json))
}

/// The tensors of one device at one moment.
#[derive(Default, Serialize)]
pub struct Moment {
    /// Nanoseconds since the journal began.
    pub time_ns: u64,
    pub bytes: u64,
    pub tensors: u64,
    /// Bytes of PyTorch's segments.
    pub segments: u64,
    /// Most bytes first.
    pub holders: Vec<Holder>,
    /// Bytes of linear memory that the process had, but PyTorch did not obtain.
    pub others: u64,
}

#[derive(Serialize)]
pub struct DeviceTensors {
    pub device: i16,
    /// When tensors held the most bytes.
    pub peak: Moment,
    /// When PyTorch last ran out of memory; `None` if it never did.
    pub failure: Option<Moment>,
    /// When the record ends.
    pub end: Moment,
    pub out_of_memory: u64,
}

#[derive(Serialize)]
pub struct Tensors {
    /// The version of PyTorch.
    pub torch: String,
    pub recorded: u64,
    /// Allocations that PyTorch made and the record does not have.
    pub lost: u64,
    pub damaged: u64,
    /// Until when the record is complete, in nanoseconds since the journal began.
    pub until_ns: u64,
    pub devices: Vec<DeviceTensors>,
}

#[derive(Clone, Copy)]
struct Live {
    size: u64,
    stack: u64,
    time_us: u64,
}

/// The tensors and segments of one device while its events are read.
#[derive(Default)]
struct Reading {
    /// By address.
    live: BTreeMap<u64, Live>,
    bytes: u64,
    segments: Ranges,
    floors: Floors,
    peak_bytes: u64,
    /// The number of the line with which `peak_bytes` was reached, and its time.
    peak_line: u64,
    peak_us: u64,
    last_us: u64,
    out_of_memory: u64,
    /// The number of the line that tells the last failure, and the time of the failure. Both are 0 if nothing failed.
    failure_line: u64,
    failure_us: u64,
}

/// All devices while a file is read up to some line.
#[derive(Default)]
struct Replay {
    lines: u64,
    devices: BTreeMap<i16, Reading>,
    stacks: Vec<Vec<Frame>>,
    /// Device and first address of every segment that PyTorch ever had.
    segments: HashSet<(i16, u64)>,
    /// PyTorch's cache at the last failure.
    cache: Option<TorchCache>,
    recorded: u64,
    lost: u64,
    until_us: u64,
}

impl Replay {
    fn of_device(&mut self, device: i16) -> &mut Reading {
        self.devices.entry(device).or_default()
    }

    fn apply(&mut self, line: TensorLine) {
        self.lines += 1;
        let number = self.lines;
        match line {
            // A stack with a number that is not the next is damage. Its events then have another stack, or none.
            TensorLine::Stack { frames, .. } => self.stacks.push(frames),
            TensorLine::Event {
                event: TensorEvent::Balance { .. },
                ..
            }
            | TensorLine::Setting { .. } => {}
            TensorLine::Event { time_us, device, event } => self.happened(number, time_us, device, event),
            TensorLine::Drained {
                time_us,
                recorded,
                lost,
            } => (self.until_us, self.recorded, self.lost) = (time_us, recorded, lost),
        }
    }

    fn happened(&mut self, line: u64, time_us: u64, device: i16, event: TensorEvent) {
        let reading = self.of_device(device);
        match event {
            TensorEvent::Allocated {
                address, size, stack, ..
            } => reading.changed(line, time_us, address, Some(Live { size, stack, time_us })),
            TensorEvent::Freed { address } => reading.changed(line, time_us, address, None),
            TensorEvent::SegmentObtained { address, size } => {
                let end = address.saturating_add(size);
                reading.segments.cut(address, end);
                reading.segments.insert(address, end);
                self.segments.insert((device, address));
            }
            // Of what it maps, PyTorch may unmap several segments at once, or a part of one.
            TensorEvent::SegmentReturned { address, size } => {
                reading.segments.cut(address, address.saturating_add(size));
            }
            TensorEvent::OutOfMemory { size, .. } => {
                reading.out_of_memory += 1;
                (reading.failure_line, reading.failure_us) = (line, time_us);
                let tensors = reading.live.iter().map(|(&address, live)| (address, live.size));
                let gaps = gaps(reading.segments.iter(), tensors);
                let growth = reading.floors.growth();
                self.cache = Some(TorchCache::at(time_us, device, size, &reading.segments, gaps, growth));
            }
            TensorEvent::Balance { .. } => {}
        }
    }
}

impl Reading {
    /// A tensor came to the address, or the one that was there went.
    fn changed(&mut self, line: u64, time_us: u64, address: u64, tensor: Option<Live>) {
        let before = match tensor {
            Some(live) => self.live.insert(address, live),
            None => self.live.remove(&address),
        };
        let (less, more) = (before.map_or(0, |live| live.size), tensor.map_or(0, |live| live.size));
        self.bytes = self.bytes.saturating_sub(less).saturating_add(more);
        self.floors
            .note(self.bytes, time_us.saturating_mul(1000), tensor.is_none());
        self.last_us = time_us;
        if self.bytes > self.peak_bytes {
            (self.peak_bytes, self.peak_line, self.peak_us) = (self.bytes, line, time_us);
        }
    }

    /// The tensors now, by line of code. `time_ns` makes a time of the journal of one that PyTorch told. The time of the
    /// moment and the other code's memory are not known here.
    fn moment(&self, stacks: &[Vec<Frame>], time_ns: &dyn Fn(u64) -> u64) -> Moment {
        let mut by_stack: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
        for live in self.live.values() {
            let sum = by_stack.entry(live.stack).or_insert((0, 0, u64::MAX));
            *sum = (sum.0.saturating_add(live.size), sum.1 + 1, sum.2.min(live.time_us));
        }
        let mut stacks_by_size: Vec<_> = by_stack.into_iter().collect();
        stacks_by_size.sort_by_key(|&(number, (bytes, ..))| (std::cmp::Reverse(bytes), number));
        let mut holders: BTreeMap<Option<Frame>, Holder> = BTreeMap::new();
        for (number, (bytes, tensors, oldest_us)) in stacks_by_size {
            let oldest_ns = time_ns(oldest_us);
            let stack = usize::try_from(number).ok().and_then(|number| stacks.get(number));
            let stack = stack.map_or(&[][..], Vec::as_slice);
            let place = line_of_the_job(stack).cloned();
            let holder = holders.entry(place.clone()).or_insert_with(|| Holder {
                place,
                bytes: 0,
                tensors: 0,
                oldest_ns,
                stack: stack.to_vec(),
            });
            holder.bytes = holder.bytes.saturating_add(bytes);
            holder.tensors += tensors;
            holder.oldest_ns = holder.oldest_ns.min(oldest_ns);
        }
        let mut holders: Vec<Holder> = holders.into_values().collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        Moment {
            bytes: self.bytes,
            tensors: self.live.len() as u64,
            segments: self.segments.iter().map(length).sum(),
            holders,
            ..Moment::default()
        }
    }
}

/// Reads the file up to `last` lines.
fn replay(path: &Path, last: u64) -> io::Result<Option<(TensorFile, Replay)>> {
    let Some(mut file) = TensorFile::open(path)? else {
        return Ok(None);
    };
    let mut replay = Replay::default();
    while replay.lines < last
        && let Some(line) = file.next_line()?
    {
        replay.apply(line);
    }
    Ok(Some((file, replay)))
}

/// PyTorch's cache at the last failure that PyTorch recorded beside a journal; `None` if there is none.
pub fn cache_at_last_failure(journal: &Path) -> io::Result<Option<TorchCache>> {
    let told = replay(&TensorFile::beside(journal), u64::MAX)?;
    let Some(cache) = told.and_then(|(_, told)| told.cache) else {
        return Ok(None);
    };
    Ok(with_records(journal)?.map(|(_, records)| cache.by_clock_of(&records)))
}

/// A journal with its tensors as records; `None` if one of both is not there.
fn with_records(journal: &Path) -> io::Result<Option<(Journal, tensor_records::Tensors)>> {
    let Ok(journal) = Journal::open(journal) else {
        return Ok(None);
    };
    let records = tensor_records::Tensors::beside(&journal)?;
    Ok(records.map(|records| (journal, records)))
}

/// The tensors that were recorded beside this journal; `None` if none were.
pub fn load(journal: &Path) -> io::Result<Option<Tensors>> {
    let path = TensorFile::beside(journal);
    let Some((file, whole)) = replay(&path, u64::MAX)? else {
        return Ok(None);
    };
    let Some((journal, records)) = with_records(journal)? else {
        return Ok(None);
    };
    let time_ns = |time_us: u64| records.time_ns(time_us);
    let mut devices = Vec::new();
    for (&device, reading) in &whole.devices {
        let after = |line: u64| -> io::Result<Moment> {
            let until = replay(&path, line)?.map(|(_, until)| until);
            let reading = until
                .as_ref()
                .and_then(|until| Some((until, until.devices.get(&device)?)));
            Ok(reading.map_or_else(Moment::default, |(until, reading)| {
                reading.moment(&until.stacks, &time_ns)
            }))
        };
        let at = |moment: Moment, time_us: u64| {
            let time_ns = time_ns(time_us);
            Moment {
                time_ns,
                others: allocated_by_others(&journal, device, time_ns, &whole.segments),
                ..moment
            }
        };
        devices.push(DeviceTensors {
            device,
            peak: at(after(reading.peak_line)?, reading.peak_us),
            failure: match reading.failure_line {
                0 => None,
                line => Some(at(after(line)?, reading.failure_us)),
            },
            end: at(reading.moment(&whole.stacks, &time_ns), reading.last_us),
            out_of_memory: reading.out_of_memory,
        });
    }
    Ok(Some(Tensors {
        torch: file.torch,
        recorded: whole.recorded,
        lost: whole.lost,
        damaged: file.damaged,
        until_ns: time_ns(whole.until_us),
        devices,
    }))
}

/// Bytes of linear memory of a device that were live in the journal at this time, and no segment of PyTorch's.
fn allocated_by_others(journal: &Journal, device: i16, time_ns: u64, segments: &HashSet<(i16, u64)>) -> u64 {
    let mut live: HashMap<u64, u64> = HashMap::new();
    let linear = |class: base::api::ClassCode| class.known() == Some(Class::Linear);
    for record in journal.records().map_while(Result::ok) {
        if record.time_ns > time_ns {
            break;
        }
        if record.device != device {
            continue;
        }
        match record.event {
            Event::Alloc(one) if linear(one.class) && !segments.contains(&(device, one.address)) => {
                live.insert(one.address, one.requested);
            }
            Event::Free { allocation, .. } if linear(allocation.class) => {
                live.remove(&allocation.address);
            }
            _ => {}
        }
    }
    live.values().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: i16 = 0;

    fn at(time_us: u64, event: TensorEvent) -> TensorLine {
        let device = DEVICE;
        TensorLine::Event { time_us, device, event }
    }

    fn allocated(time_us: u64, address: u64, size: u64, stack: u64) -> TensorLine {
        let event = TensorEvent::Allocated {
            address,
            size,
            stream: 0,
            stack,
            allocated: None,
            pool: None,
        };
        at(time_us, event)
    }

    fn freed(time_us: u64, address: u64) -> TensorLine {
        at(time_us, TensorEvent::Freed { address })
    }

    fn segment(address: u64, size: u64) -> TensorLine {
        at(0, TensorEvent::SegmentObtained { address, size })
    }

    fn returned(address: u64, size: u64) -> TensorLine {
        at(0, TensorEvent::SegmentReturned { address, size })
    }

    /// The cache at a failure after these lines.
    fn cache(replay: &mut Replay, lines: impl IntoIterator<Item = TensorLine>) -> TorchCache {
        lines.into_iter().for_each(|line| replay.apply(line));
        let (size, stack) = (60, 0);
        replay.apply(at(9, TensorEvent::OutOfMemory { size, stack }));
        let cache = replay.cache.take().expect("a failure");
        assert_eq!(cache.requested, 60);
        cache
    }

    #[test]
    fn holders_are_those_of_the_peak() {
        let mut replay = Replay::default();
        let stacks = [&[("a.py", 1)][..], &[("b.py", 2)], &[("a.py", 1), ("c.py", 9)]];
        for (number, frames) in (0..).zip(stacks) {
            let frame = |&(file, line): &(&str, u64)| Frame::new(file, line, "f");
            let frames = frames.iter().map(frame).collect();
            replay.apply(TensorLine::Stack { number, frames });
        }
        for line in [allocated(1, 1, 100, 0), allocated(2, 2, 50, 1), allocated(3, 3, 30, 2)] {
            replay.apply(line);
        }
        let reading = &replay.devices[&DEVICE];
        assert_eq!((reading.peak_bytes, reading.peak_line), (180, 6));
        let moment = reading.moment(&replay.stacks, &|time_us| (time_us - 1) * 1000);
        let told = moment.holders.iter().map(|holder| {
            let line = holder.place.as_ref().unwrap().line;
            (line, holder.bytes, holder.tensors, holder.oldest_ns)
        });
        assert_eq!(told.collect::<Vec<_>>(), [(1, 130, 2, 0), (2, 50, 1, 1000)]);
        replay.apply(freed(9, 1));
        replay.apply(allocated(2, 2, 20, 1));
        let bytes = replay.devices[&DEVICE].bytes;
        assert_eq!(
            bytes, 50,
            "an address that is given out again replaces the stale tensor"
        );
    }

    #[test]
    fn the_gaps_between_tensors_are_free() {
        let tensors = [(1000, 20), (1050, 30), (1020, 5)].map(|(address, size)| allocated(0, address, size, 0));
        let lines = [segment(1000, 100), segment(5000, 50)].into_iter().chain(tensors);
        let last = cache(&mut Replay::default(), lines.chain([freed(0, 1020)]));
        assert_eq!((last.free, last.largest, last.growth), (30 + 20 + 50, 50, None));
        assert_eq!(last.segments, 150);
    }

    #[test]
    fn mapped_segments_are_given_back_in_other_pieces_than_they_came() {
        let mut replay = Replay::default();
        let obtained = [(1000, 300), (5000, 200), (5200, 100)].map(|(address, size)| segment(address, size));
        // The tensor lies in two mappings.
        let then = [allocated(0, 5150, 100, 0), returned(1100, 50), returned(5260, 40)];
        let last = cache(&mut replay, obtained.into_iter().chain(then));
        assert_eq!((last.segments, last.free), (250 + 260, 250 + 150 + 10));
        assert_eq!((last.largest, last.largest_across), (150, 150));
        let last = cache(&mut replay, [freed(0, 5150)]);
        assert_eq!((last.segments, last.largest_across), (510, 260));
        let last = cache(&mut replay, [returned(5000, 260), returned(1000, 300)]);
        assert_eq!((last.segments, last.largest_across), (0, 0));
    }

    #[test]
    fn tensors_that_grow_are_seen_inside_the_segments() {
        let step = |step| {
            [
                allocated(step, step * 100, 10, 0),
                allocated(step, 1_000_000, 50, 0),
                freed(step, 1_000_000),
            ]
        };
        let last = cache(&mut Replay::default(), (0..200).flat_map(step));
        let growth = last.growth.expect("10 bytes are kept in each step");
        assert!((1000..=2000).contains(&growth.bytes), "{growth:?}");
        assert!(growth.from_ns < growth.to_ns && growth.to_ns <= 200_000, "{growth:?}");
    }
}
