//! PyTorch's tensors as records: a tensor is an allocation, and what PyTorch obtained for its tensors is segments.
//!
//! The journal has PyTorch's segments as allocations of the job. The file of tensors names them, so their records in
//! the journal are left out, or become segments if the file ends before them (the job was killed, and the file has all
//! but its last second). Allocations of other code stay as they are.

use std::collections::HashMap;
use std::io;

use base::api::{Api, Class};
use base::cuda::DriverError;
use base::text::shown;
use journal::format::{Allocation, Event, Frame, Record, TensorEvent, TensorLine};
use journal::reader::{Journal, Records, TensorFile};

use super::origins::FIRST_OF_TORCH;
use super::space::Ranges;

/// PyTorch's allocator serves multiples of this many bytes.
const PYTORCHS_STEP: u64 = 512;

/// Streams have numbers as in a journal.
const DEFAULT_STREAM: u8 = 1;
const LAST_STREAM: u8 = 254;

type Place = (i16, u64);

pub struct Tensors {
    path: std::path::PathBuf,
    stacks: Vec<Vec<Frame>>,
    wall_start_ns: u64,
    pid: u32,
    /// How far PyTorch's clock is behind that of the journal, in nanoseconds.
    behind_ns: i64,
    /// How often PyTorch obtained and returned a segment at this place.
    segments: HashMap<Place, (u32, u32)>,
    /// The addresses that PyTorch's segments ever covered, by device.
    covered: HashMap<i16, Ranges>,
    /// PyTorch's failures: device, time in microseconds since 1970, and bytes.
    failures: Vec<(i16, u64, u64)>,
    /// Which physical memory (of all, in the order of the journal) PyTorch mapped into its segments.
    mapped: Vec<u64>,
    lost: u64,
    damaged: u64,
}

impl Tensors {
    /// Reads the file beside a journal once. `None` if there is none.
    pub fn beside(journal: &Journal) -> io::Result<Option<Tensors>> {
        let path = TensorFile::beside(journal.path());
        let Some(mut file) = TensorFile::open(&path)? else {
            return Ok(None);
        };
        let mut tensors = Tensors {
            path,
            stacks: Vec::new(),
            wall_start_ns: journal.header().wall_start_ns,
            pid: journal.header().pid,
            behind_ns: 0,
            segments: HashMap::new(),
            covered: HashMap::new(),
            failures: Vec::new(),
            mapped: Vec::new(),
            lost: 0,
            damaged: 0,
        };
        let mut obtained: HashMap<Place, Vec<u64>> = HashMap::new();
        while let Some(line) = file.next_line()? {
            match line {
                TensorLine::Stack { frames, .. } => tensors.stacks.push(frames),
                TensorLine::Event { time_us, device, event } => match event {
                    TensorEvent::SegmentObtained { address, size } => {
                        obtained.entry((device, address)).or_default().push(time_us);
                        tensors.segments.entry((device, address)).or_default().0 += 1;
                        let (covered, end) = (tensors.covered.entry(device).or_default(), address.saturating_add(size));
                        covered.cut(address, end);
                        covered.insert_joined(address, end);
                    }
                    TensorEvent::SegmentReturned { address, .. } => {
                        tensors.segments.entry((device, address)).or_default().1 += 1;
                    }
                    TensorEvent::OutOfMemory { size, .. } => tensors.failures.push((device, time_us, size)),
                    _ => {}
                },
                TensorLine::Drained { lost, .. } => tensors.lost = lost,
                TensorLine::Setting { .. } => {}
            }
        }
        tensors.damaged = file.damaged;
        tensors.read_journal(journal, &obtained)?;
        Ok(Some(tensors))
    }

    /// Nanoseconds since the journal began, by its clock, of a time that PyTorch told.
    pub fn time_ns(&self, time_us: u64) -> u64 {
        let unix_ns = time_us.saturating_mul(1000).saturating_add_signed(self.behind_ns);
        unix_ns.saturating_sub(self.wall_start_ns)
    }

    /// Whether PyTorch's segments were expandable.
    pub fn are_expandable(&self) -> bool {
        !self.mapped.is_empty()
    }

    /// Whether PyTorch obtained memory at all.
    pub fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// What the user should know of the file.
    pub fn note(&self) -> Option<String> {
        let (path, lost, damaged) = (shown(&self.path), self.lost, self.damaged);
        (lost > 0 || damaged > 0).then(|| format!("{path}: {lost} tensors are missing, {damaged} lines are damaged"))
    }

    pub fn frames(&self, stack: u32) -> &[Frame] {
        let number = stack
            .checked_sub(FIRST_OF_TORCH)
            .and_then(|number| usize::try_from(number).ok());
        number
            .and_then(|number| self.stacks.get(number))
            .map_or(&[], Vec::as_slice)
    }

    /// Whether a failed request is one that PyTorch made for a tensor, and told as its own failure. PyTorch asks the
    /// driver for at least the tensor's bytes, and asks twice.
    fn tells_failure(&self, record: &Record, requested: u64) -> bool {
        const SAME_US: u64 = 1_000_000;
        let at_us = self.wall_start_ns.saturating_add(record.time_ns) / 1000;
        let is_it = |&(device, time_us, size): &(i16, u64, u64)| {
            device == record.device && time_us.abs_diff(at_us) < SAME_US && size <= requested
        };
        self.failures.iter().any(is_it)
    }

    fn covers(&self, device: i16, address: u64) -> bool {
        let covered = self.covered.get(&device);
        covered.is_some_and(|covered| covered.around(address).is_some())
    }

    /// Finds the physical memory of expandable segments, and how far PyTorch's clock is behind. `obtained` has the times at
    /// which PyTorch says that it obtained a segment at a place, in microseconds since 1970.
    ///
    /// PyTorch takes the time after the call that obtained the segment, so its time is later than that of the journal.
    /// Where it was earlier, its clock is behind: it counts cycles, and makes times of them afterwards
    /// (`c10/util/ApproximateClock.h`).
    fn read_journal(&mut self, journal: &Journal, obtained: &HashMap<Place, Vec<u64>>) -> io::Result<()> {
        /// A larger difference is none of clocks.
        const MOST_BEHIND_NS: i64 = 1_000_000_000;
        let mut made: HashMap<u64, u64> = HashMap::new();
        let mut count = 0;
        let mut seen: HashMap<Place, usize> = HashMap::new();
        let mut behind_ns: Option<i64> = None;
        for record in journal.records() {
            let record = record?;
            match record.event {
                Event::Alloc(allocation) if allocation.class == Class::Vmm.into() => {
                    made.insert(allocation.address, count);
                    count += 1;
                }
                Event::Alloc(allocation) => {
                    let place = (record.device, allocation.address);
                    let Some(times) = obtained.get(&place) else { continue };
                    let number = seen.entry(place).or_default();
                    if let Some(time_us) = times.get(*number) {
                        let at_ns = self.wall_start_ns.saturating_add(record.time_ns);
                        let by_ns = at_ns.wrapping_sub(time_us.saturating_mul(1000)).cast_signed();
                        if by_ns.unsigned_abs() < MOST_BEHIND_NS.unsigned_abs() {
                            behind_ns = behind_ns.max(Some(by_ns));
                        }
                    }
                    *number += 1;
                }
                Event::Map { address, handle, .. } if self.covers(record.device, address) => {
                    self.mapped.extend(made.get(&handle));
                }
                _ => {}
            }
        }
        self.behind_ns = behind_ns.unwrap_or(0).max(0);
        self.mapped.sort_unstable();
        self.mapped.dedup();
        Ok(())
    }

    fn entries(&self) -> io::Result<Entries<'_>> {
        let file = TensorFile::open(&self.path)?;
        let file = file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Entries {
            tensors: self,
            file,
            live: HashMap::new(),
            streams: HashMap::from([(0, DEFAULT_STREAM)]),
            seen: HashMap::new(),
            made: 0,
            physical: HashMap::new(),
        })
    }
}

/// Reads the file once more, while the records of the journal are read.
struct Entries<'a> {
    tensors: &'a Tensors,
    file: TensorFile,
    live: HashMap<Place, (Allocation, u32)>,
    /// The numbers of PyTorch's streams.
    streams: HashMap<u64, u8>,
    /// Allocations and frees of the journal so far, at places of PyTorch's segments.
    seen: HashMap<Place, (u32, u32)>,
    /// Physical memory that the journal has so far, and which of it is PyTorch's now.
    made: u64,
    physical: HashMap<u64, bool>,
}

impl Entries<'_> {
    /// The next tensor or segment.
    fn next(&mut self) -> io::Result<Option<Record>> {
        while let Some(line) = self.file.next_line()? {
            if let Some(record) = self.record(line) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn record(&mut self, line: TensorLine) -> Option<Record> {
        let tensors = self.tensors;
        let TensorLine::Event { time_us, device, event } = line else {
            return None;
        };
        let of_torch = |number: u64| match u32::try_from(number) {
            Ok(number) if number < FIRST_OF_TORCH / 2 => FIRST_OF_TORCH + number,
            _ => 0,
        };
        let (api, stack, event) = match event {
            TensorEvent::Allocated {
                address,
                size,
                stream,
                stack,
                ..
            } => {
                let allocated = size.max(1).checked_next_multiple_of(PYTORCHS_STEP).unwrap_or(size);
                let allocation = Allocation::linear(address, size, allocated, self.stream(stream));
                let stack = of_torch(stack);
                self.live.insert((device, address), (allocation, stack));
                (Api::torch_alloc, stack, Event::Alloc(allocation))
            }
            TensorEvent::Freed { address } => {
                let (allocation, stack) = self.live.remove(&(device, address))?;
                (Api::torch_free, stack, Event::free(allocation))
            }
            TensorEvent::SegmentObtained { address, size } => (Api::torch_alloc, 0, Event::segment(address, size)),
            TensorEvent::SegmentReturned { address, size } => (Api::torch_free, 0, Event::segment_gone(address, size)),
            TensorEvent::OutOfMemory { size, stack } => (Api::torch_alloc, of_torch(stack), Event::out_of_memory(size)),
            TensorEvent::Balance { .. } => return None,
        };
        Some(Record {
            slot: u64::MAX,
            time_ns: tensors.time_ns(time_us),
            tid: tensors.pid,
            api: api.into(),
            device,
            stack,
            event,
        })
    }

    /// The number of a stream; 0 if there are too many.
    fn stream(&mut self, handle: u64) -> u8 {
        let next = u8::try_from(self.streams.len() + 1)
            .ok()
            .filter(|&next| next <= LAST_STREAM);
        match (self.streams.get(&handle), next) {
            (Some(&known), _) => known,
            (None, Some(next)) => *self.streams.entry(handle).or_insert(next),
            (None, None) => 0,
        }
    }

    /// What becomes of a record of the journal. `None` if PyTorch's record tells the same.
    fn translated(&mut self, record: Record) -> Option<Record> {
        match record.event {
            Event::Alloc(one) if one.class == Class::Vmm.into() => {
                let number = self.made;
                self.made += 1;
                let own = self.tensors.mapped.binary_search(&number).is_ok();
                self.physical.insert(one.address, own);
                (!own).then_some(record)
            }
            Event::Free { allocation, .. } if allocation.class == Class::Vmm.into() => {
                let own = self.physical.remove(&allocation.address).unwrap_or(false);
                (!own).then_some(record)
            }
            Event::Map { address, .. } | Event::Unmap { address, .. }
                if self.tensors.covers(record.device, address) =>
            {
                None
            }
            Event::AllocFailed { requested, result, .. }
                if result == DriverError::OUT_OF_MEMORY.0 && self.tensors.tells_failure(&record, requested) =>
            {
                None
            }
            Event::Alloc(one) => {
                let place = (record.device, one.address);
                let Some(&(obtained, _)) = self.tensors.segments.get(&place) else {
                    return Some(record);
                };
                let seen = self.seen.entry(place).or_default();
                seen.0 += 1;
                // After the file's end, this memory is PyTorch's or not; nothing tells.
                (seen.0 > obtained).then_some(record)
            }
            Event::Free { allocation, .. } => {
                let place = (record.device, allocation.address);
                let Some(&(obtained, returned)) = self.tensors.segments.get(&place) else {
                    return Some(record);
                };
                let seen = self.seen.entry(place).or_default();
                seen.1 += 1;
                if seen.1 > obtained {
                    return Some(record);
                }
                // The segment was given back after the file's end.
                (seen.1 > returned).then_some(Record {
                    event: Event::segment_gone(allocation.address, allocation.reserved.unwrap_or(allocation.allocated)),
                    ..record
                })
            }
            _ => Some(record),
        }
    }
}

/// Iterator over the records and tensors of a process, in the order of their times.
pub struct Merged<'a> {
    records: Records<'a>,
    tensors: Option<Entries<'a>>,
    next: Option<Record>,
    next_tensor: Option<Record>,
    position: u64,
    done: bool,
}

impl<'a> Merged<'a> {
    /// The records of a journal, and its tensors if there are any.
    pub fn of(journal: &'a Journal, tensors: Option<&'a Tensors>) -> io::Result<Merged<'a>> {
        let records = journal.records();
        Ok(Merged {
            tensors: tensors.map(Tensors::entries).transpose()?,
            next: None,
            next_tensor: None,
            position: records.position(),
            records,
            done: false,
        })
    }

    /// Slots of the journal that are unfinished so far.
    pub fn unfinished(&self) -> u64 {
        self.records.unfinished()
    }

    /// Slots of the journal that are damaged so far.
    pub fn damaged(&self) -> u64 {
        self.records.damaged()
    }

    /// How many bytes of the journal have been read.
    pub fn position(&self) -> u64 {
        self.records.position().max(self.position)
    }

    fn step(&mut self) -> io::Result<Option<Record>> {
        let Some(tensors) = &mut self.tensors else {
            return self.records.next().transpose();
        };
        while self.next.is_none()
            && let Some(record) = self.records.next().transpose()?
        {
            self.next = tensors.translated(record);
        }
        if self.next_tensor.is_none() {
            self.next_tensor = tensors.next()?;
        }
        Ok(match (&self.next, &self.next_tensor) {
            (Some(record), Some(tensor)) if record.time_ns < tensor.time_ns => self.next.take(),
            (_, Some(_)) => self.next_tensor.take(),
            (_, None) => self.next.take(),
        })
    }
}

impl Iterator for Merged<'_> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step().transpose();
        self.done = !matches!(step, Some(Ok(_)));
        step
    }
}
