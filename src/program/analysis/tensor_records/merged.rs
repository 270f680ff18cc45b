//! The records of a journal and PyTorch's tensors as one stream, in the order of their times.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use base::api::{Api, Class};
use journal::format::{Allocation, Event, Record, TensorEvent, TensorLine};
use journal::reader::{Journal, Records, TensorFile};

use super::{DEFAULT_STREAM, LAST_STREAM, PYTORCHS_STEP, Place, Tensors, Told, is_memory, is_same_failure, of_torch};
use crate::analysis::out_of_memory::is_out_of_memory;

/// Reads the file once more, while the records of the journal are read.
struct Entries<'a> {
    tensors: &'a Tensors,
    file: TensorFile,
    /// The tensors so far, which the lines of frees name by address alone.
    live: BTreeMap<Place, (Allocation, u32)>,
    /// Records that come before the next one of the journal.
    before: VecDeque<Record>,
    /// The numbers of PyTorch's streams.
    streams: HashMap<u64, u8>,
    /// Allocations and frees of the journal so far, at places of PyTorch's segments.
    seen: HashMap<Place, (u32, u32)>,
    /// Physical memory that the journal has so far, and which of it is PyTorch's now.
    made: u64,
    physical: HashMap<u64, bool>,
}

impl<'a> Entries<'a> {
    fn of(tensors: &'a Tensors) -> io::Result<Entries<'a>> {
        let file = TensorFile::open(&tensors.path)?;
        let file = file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Entries {
            tensors,
            file,
            live: BTreeMap::new(),
            before: VecDeque::new(),
            streams: HashMap::from([(0, DEFAULT_STREAM)]),
            seen: HashMap::new(),
            made: 0,
            physical: HashMap::new(),
        })
    }
}

impl Entries<'_> {
    /// The next line of a device, with its time in nanoseconds since the journal began.
    fn next(&mut self) -> io::Result<Option<Told>> {
        while let Some(line) = self.file.next_line()? {
            if let TensorLine::Event { time_us, device, event } = line {
                let time_ns = self.tensors.time_ns(time_us);
                return Ok(Some((time_ns, time_us, device, event)));
            }
        }
        Ok(None)
    }

    /// The record of a line; `None` if the journal tells the same.
    fn record(&mut self, (time_ns, time_us, device, event): Told) -> Option<Record> {
        let tensors = self.tensors;
        let (api, stack, event) = match event {
            TensorEvent::Allocated {
                address,
                size,
                stream,
                stack,
                allocated,
                ..
            } => {
                let rounded = || size.max(1).checked_next_multiple_of(PYTORCHS_STEP).unwrap_or(size);
                let allocated = allocated.unwrap_or_else(rounded).max(size);
                let allocation = Allocation::linear(address, size, allocated, self.stream(stream));
                let stack = of_torch(stack);
                self.live.insert((device, address), (allocation, stack));
                (Api::torch_alloc, stack, Event::Alloc(allocation))
            }
            TensorEvent::Freed { address } => {
                let (allocation, stack) = self.live.remove(&(device, address))?;
                (Api::torch_free, stack, Event::free(allocation))
            }
            // PyTorch's own limit refused it: no call of the driver failed.
            TensorEvent::OutOfMemory { size, stack }
                if !(tensors.failed.iter()).any(|&failed| is_same_failure(failed, (device, time_us))) =>
            {
                (Api::torch_alloc, of_torch(stack), Event::out_of_memory(size))
            }
            // The journal has the segments and the other failures.
            _ => return None,
        };
        Some(Record {
            slot: u64::MAX,
            time_ns,
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

    /// What becomes of a record of the journal; `None` if its memory is counted where PyTorch maps it.
    fn translated(&mut self, mut record: Record) -> Option<Record> {
        let (tensors, device) = (self.tensors, record.device);
        let failed = match record.event {
            Event::FrameworkRequest(_) | Event::AllocFailed { .. } => tensors.failed_tensor(&record),
            _ => None,
        };
        match &mut record.event {
            Event::Alloc(one) if one.class == Class::Vmm.into() => {
                let number = self.made;
                self.made += 1;
                let own = tensors.mapped.binary_search(&number).is_ok();
                self.physical.insert(one.address, own);
                return (!own).then_some(record);
            }
            Event::Free { allocation, .. } if allocation.class == Class::Vmm.into() => {
                let own = self.physical.remove(&allocation.address).unwrap_or(false);
                return (!own).then_some(record);
            }
            &mut Event::Map { address, size, .. } if tensors.covers(device, address) => {
                record.event = Event::segment(address, size);
            }
            &mut Event::Unmap { address, size, .. } if tensors.covers(device, address) => {
                return Some(self.returned(record, address, size, false));
            }
            Event::FrameworkRequest(request) if request.requested.is_none() => {
                request.requested = failed.map(|failed| failed.size);
            }
            Event::AllocFailed {
                class,
                requested,
                result,
                ..
            } if is_out_of_memory(*result) => {
                if let Some(failed) = failed {
                    // PyTorch asks the driver for a part of what the tensor needs, or for more.
                    (*class, *requested) = (Class::Linear.into(), failed.size.max(*requested));
                    record.stack = failed.stack;
                }
            }
            &mut Event::Alloc(one) if is_memory(one) => {
                let place = (device, one.address);
                let Some(&(obtained, _)) = tensors.segments.get(&place) else {
                    return Some(record);
                };
                let seen = self.seen.entry(place).or_default();
                seen.0 += 1;
                // After the file's end, this memory is PyTorch's or not; nothing tells. Snapshots do not see each segment.
                if seen.0 <= obtained || tensors.snapshots {
                    record.event = Event::segment(one.address, one.reserved.unwrap_or(one.allocated));
                }
            }
            &mut Event::Free {
                allocation,
                context_gone,
            } if is_memory(allocation) => {
                let place = (device, allocation.address);
                let Some(&(obtained, _)) = tensors.segments.get(&place) else {
                    return Some(record);
                };
                let seen = self.seen.entry(place).or_default();
                seen.1 += 1;
                if seen.1 <= obtained || tensors.snapshots {
                    let size = allocation.reserved.unwrap_or(allocation.allocated);
                    return Some(self.returned(record, allocation.address, size, context_gone));
                }
            }
            _ => {}
        }
        Some(record)
    }

    /// A segment goes. The tensors that were in it have gone before, whenever their lines come.
    fn returned(&mut self, record: Record, address: u64, size: u64, context_gone: bool) -> Record {
        let device = record.device;
        let inside = self
            .live
            .range((device, address)..(device, address.saturating_add(size)));
        let inside: Vec<u64> = inside.map(|(&(_, address), _)| address).collect();
        for address in inside {
            if let Some((allocation, stack)) = self.live.remove(&(device, address)) {
                self.before.push_back(Record {
                    api: Api::torch_free.into(),
                    stack,
                    event: Event::free(allocation),
                    ..record
                });
            }
        }
        let again = false;
        Record {
            event: Event::SegmentFree {
                address,
                size,
                again,
                context_gone,
            },
            ..record
        }
    }
}

/// Iterator over the records and tensors of a process, in the order of their times.
pub struct Merged<'a> {
    records: Records<'a>,
    tensors: Option<Entries<'a>>,
    next: Option<Record>,
    next_line: Option<Told>,
    position: u64,
    done: bool,
}

impl<'a> Merged<'a> {
    /// The records of a journal, and its tensors if there are any.
    pub fn of(journal: &'a Journal, tensors: Option<&'a Tensors>) -> io::Result<Merged<'a>> {
        let records = journal.records();
        Ok(Merged {
            tensors: tensors.map(Entries::of).transpose()?,
            next: None,
            next_line: None,
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
        loop {
            if let Some(record) = tensors.before.pop_front() {
                return Ok(Some(record));
            }
            if self.next.is_none() {
                self.next = self.records.next().transpose()?;
            }
            if self.next_line.is_none() {
                self.next_line = tensors.next()?;
            }
            let is_line = match (&self.next, &self.next_line) {
                (Some(record), Some((time_ns, ..))) => *time_ns < record.time_ns,
                (next, _) => next.is_none(),
            };
            let record = if is_line {
                let Some(line) = self.next_line.take() else {
                    return Ok(None);
                };
                tensors.record(line)
            } else {
                self.next.take().and_then(|record| tensors.translated(record))
            };
            if let Some(record) = record {
                tensors.before.push_back(record);
            }
        }
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
