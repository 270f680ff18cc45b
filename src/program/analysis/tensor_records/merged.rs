//! The records of a journal and PyTorch's tensors as one stream, in the order of their times.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::ops::RangeFrom;

use base::api::{Api, Class};
use journal::format::{Allocation, Event, MemInfo, Record, TensorEvent, TensorLine};
use journal::reader::{Journal, Records, TensorFile, Wanted};

use super::{DEFAULT_POOL, DEFAULT_STREAM, LAST_STREAM, PYTORCHS_STEP, Place, Tensors, Told, is_memory, of_torch};
use crate::analysis::ranges::Ranges;
use crate::analysis::scene::is_out_of_memory;

/// Reads the file once more, while the records of the journal are read.
struct Entries<'a> {
    tensors: &'a Tensors,
    file: TensorFile,
    /// The time of the last line. A failure is told with its own time, behind what its later snapshot shows.
    last_ns: u64,
    /// The tensors so far, which the lines of frees name by address alone.
    live: BTreeMap<Place, (Allocation, u32)>,
    /// Of snapshots, those whose segment went since.
    gone: BTreeMap<Place, (Allocation, u32)>,
    /// The addresses of PyTorch's segments now, by device.
    held: HashMap<i16, Ranges>,
    /// Records that come before the next one of the journal, and after it.
    before: VecDeque<Record>,
    after: Vec<Record>,
    /// The pool of the last tensor.
    pool: (u64, u64),
    /// The numbers of PyTorch's streams.
    streams: HashMap<u64, u8>,
    /// Allocations (false) and frees (true) of the journal so far, at places of PyTorch's segments.
    seen: HashMap<(Place, bool), u32>,
    /// Memory that the journal has so far, and the places of what no snapshot shows of it.
    numbers: RangeFrom<u64>,
    not_shown: HashSet<Place>,
    /// Physical memory that the journal has so far, and which of it is PyTorch's now.
    made: u64,
    /// With the bytes if it is mapped nowhere.
    physical: HashMap<u64, (bool, u64)>,
    /// By device, the bytes that PyTorch holds for a request that fails.
    attempts: HashMap<i16, u64>,
}

impl<'a> Entries<'a> {
    fn of(tensors: &'a Tensors) -> io::Result<Entries<'a>> {
        let file = TensorFile::open(&tensors.path, Wanted::AllButStacks)?;
        let file = file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Entries {
            tensors,
            file,
            last_ns: 0,
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            held: HashMap::new(),
            before: VecDeque::new(),
            after: Vec::new(),
            attempts: HashMap::new(),
            pool: DEFAULT_POOL,
            streams: HashMap::from([(0, DEFAULT_STREAM)]),
            seen: HashMap::new(),
            numbers: 0..,
            not_shown: HashSet::new(),
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
                let mut time_ns = self.tensors.time_ns(time_us);
                if self.tensors.snapshots {
                    time_ns = time_ns.max(self.last_ns);
                    self.last_ns = time_ns;
                }
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
                pool,
            } => {
                self.pool = pool.unwrap_or(DEFAULT_POOL);
                let rounded = || size.max(1).checked_next_multiple_of(PYTORCHS_STEP).unwrap_or(size);
                let allocated = allocated.unwrap_or_else(rounded).max(size);
                let allocation = Allocation::linear(address, size, allocated, self.stream(stream));
                let stack = of_torch(stack);
                self.live.insert((device, address), (allocation, stack));
                self.gone.remove(&(device, address));
                (Api::torch_alloc, stack, Event::Alloc(allocation))
            }
            TensorEvent::Freed { address } => {
                self.gone.remove(&(device, address));
                let (allocation, stack) = self.live.remove(&(device, address))?;
                (Api::torch_free, stack, Event::free(allocation))
            }
            // PyTorch's own limit refused it: no call of the driver failed.
            TensorEvent::OutOfMemory { size, stack } if !tensors.is_of_driver((device, time_us)) => {
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

    /// The bytes that PyTorch holds now for a request that fails.
    fn attempted(&self, device: i16) -> u64 {
        self.attempts.get(&device).copied().unwrap_or(0)
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
                let is_attempt = tensors.unmapped.binary_search(&number).is_ok();
                let own = is_attempt || tensors.mapped.binary_search(&number).is_ok();
                let attempt = if is_attempt { one.allocated } else { 0 };
                *self.attempts.entry(device).or_default() += attempt;
                self.physical.insert(one.address, (own, attempt));
                return (!own).then_some(record);
            }
            Event::Free { allocation, .. } if allocation.class == Class::Vmm.into() => {
                let (own, attempt) = self.physical.remove(&allocation.address).unwrap_or_default();
                let attempts = self.attempts.entry(device).or_default();
                *attempts = attempts.saturating_sub(attempt);
                return (!own).then_some(record);
            }
            // The tensor that failed counts what was obtained for it in vain, so that is free here.
            Event::Measured {
                mem_info,
                process_bytes,
                reserved,
                ..
            } => {
                let attempts = self.attempted(device);
                mem_info.iter_mut().for_each(|told| add_free(told, attempts));
                *process_bytes = process_bytes.map(|bytes| bytes.saturating_sub(attempts));
                *reserved = reserved.saturating_sub(attempts);
            }
            Event::Refused(refusal) => {
                let attempts = self.attempted(device);
                refusal.driver.iter_mut().for_each(|told| add_free(told, attempts));
            }
            Event::Process(process) if process.pid == tensors.pid => {
                let attempts = self.attempted(device);
                process.bytes = process.bytes.map(|bytes| bytes.saturating_sub(attempts));
            }
            &mut Event::Map { address, size, .. } if tensors.covers(device, address) => {
                return Some(self.obtained(record, address, size));
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
            &mut (Event::Alloc(one) | Event::Free { allocation: one, .. }) if is_memory(one) => {
                let place = (device, one.address);
                let gone = match record.event {
                    Event::Free { context_gone, .. } => Some(context_gone),
                    _ => None,
                };
                let is_not_shown = match gone {
                    Some(_) => self.not_shown.remove(&place),
                    None => {
                        let around = self.numbers.next().and_then(|number| tensors.not_shown.around(number));
                        around.is_some() && self.not_shown.insert(place)
                    }
                };
                // After the file's end, this memory is PyTorch's or not; nothing tells. Snapshots do not see each segment.
                let is_segment = tensors.segments.get(&place).is_some_and(|&obtained| {
                    let seen = self.seen.entry((place, gone.is_some())).or_default();
                    *seen += 1;
                    *seen <= obtained || tensors.snapshots
                });
                if is_not_shown || is_segment {
                    let size = one.reserved.unwrap_or(one.allocated);
                    return Some(match gone {
                        None => self.obtained(record, one.address, size),
                        Some(context_gone) => self.returned(record, one.address, size, context_gone),
                    });
                }
            }
            _ => {}
        }
        Some(record)
    }

    /// A segment comes. If it went and came between two snapshots, the tensors that the next one shows are there again.
    fn obtained(&mut self, record: Record, address: u64, size: u64) -> Record {
        let device = record.device;
        let held = self.held.entry(device).or_default();
        let end = address.saturating_add(size);
        held.cut(address, end);
        held.insert_joined(address, end);
        // A tensor of expandable segments lies in several pieces, and is there with the last.
        let (start, end) = held.around(address).unwrap_or((address, end));
        let fits = |(place, (one, _)): &(&Place, &(Allocation, u32))| place.1.saturating_add(one.allocated) <= end;
        let gone = self.gone.range((device, start)..(device, end));
        let back: Vec<Place> = gone.filter(fits).map(|(&place, _)| place).collect();
        for place in back {
            if let Some((allocation, stack)) = self.gone.remove(&place) {
                self.live.insert(place, (allocation, stack));
                self.after.push(Record {
                    api: Api::torch_alloc.into(),
                    stack,
                    event: Event::Alloc(allocation),
                    ..record
                });
            }
        }
        Record {
            event: Event::segment(address, size),
            ..record
        }
    }

    /// A segment goes. The tensors that were in it have gone before, whenever their lines come.
    fn returned(&mut self, record: Record, address: u64, size: u64, context_gone: bool) -> Record {
        let device = record.device;
        let held = self.held.entry(device).or_default();
        held.cut(address, address.saturating_add(size));
        // One that begins before may reach in.
        let before = self.live.range((device, 0)..(device, address)).next_back();
        let first = before.filter(|(place, (one, _))| place.1.saturating_add(one.allocated) > address);
        let first = first.map_or(address, |(place, _)| place.1);
        let inside = self
            .live
            .range((device, first)..(device, address.saturating_add(size).max(first)));
        let inside: Vec<Place> = inside.map(|(&place, _)| place).collect();
        for place in inside {
            if let Some((allocation, stack)) = self.live.remove(&place) {
                if self.tensors.snapshots {
                    self.gone.insert(place, (allocation, stack));
                }
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

fn add_free(told: &mut MemInfo, bytes: u64) {
    told.free = told.free.saturating_add(bytes).min(told.total);
}

/// Iterator over the records and tensors of a process, in the order of their times. An error is the last item.
pub struct Merged<'a> {
    /// Those of the journal so far.
    pub records: Records<'a>,
    tensors: Option<Entries<'a>>,
    next: Option<Record>,
    next_line: Option<Told>,
}

impl<'a> Merged<'a> {
    /// The records of a journal, and its tensors if there are any.
    pub fn of(journal: &'a Journal, tensors: Option<&'a Tensors>) -> io::Result<Merged<'a>> {
        Ok(Merged {
            tensors: tensors.map(Entries::of).transpose()?,
            next: None,
            next_line: None,
            records: journal.records(),
        })
    }

    /// The pool of PyTorch from which the last record was allocated, if it is a tensor.
    pub fn pool(&self) -> (u64, u64) {
        self.tensors.as_ref().map_or(DEFAULT_POOL, |tensors| tensors.pool)
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
            tensors.before.extend(record);
            tensors.before.extend(tensors.after.drain(..));
        }
    }
}

impl Iterator for Merged<'_> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
