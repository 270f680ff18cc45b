//! PyTorch's tensors as records: a tensor is an allocation, and what PyTorch obtained for its tensors is segments.
//!
//! The journal has PyTorch's segments as allocations of the job. The file of tensors names them, so in these records they
//! are segments, with the times of the journal. What PyTorch obtained after the file's last line stays an allocation of
//! the job. Allocations of other code stay as they are, too.

mod merged;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use base::api::{Api, Class};
use base::text::shown;
use journal::format::{Allocation, Event, Frame, Record, TensorEvent, TensorLine};
use journal::reader::{Journal, TensorFile, Wanted};

use crate::analysis::device_ledger::NameSpace;
use crate::analysis::origins::FIRST_OF_TORCH;
use crate::analysis::ranges::Ranges;
use crate::analysis::scene::is_out_of_memory;

pub use merged::Merged;

/// PyTorch's allocator serves multiples of this many bytes.
const PYTORCHS_STEP: u64 = 512;

/// PyTorch's pool (`MempoolId_t`) that is not private.
pub const DEFAULT_POOL: (u64, u64) = (0, 0);

/// The bytes of the segment that PyTorch's cache obtains for a request; `None` if no address is so high
/// (`get_allocation_size` in c10/cuda/CUDACachingAllocator.cpp, wheel 2.12).
pub fn segment_for(requested: u64) -> Option<u64> {
    match requested {
        0..=SMALL_REQUEST => Some(SMALL_SEGMENT),
        _ if requested < OWN_SEGMENT_FROM => Some(LARGE_SEGMENT),
        _ => requested.checked_next_multiple_of(SMALL_SEGMENT),
    }
}

/// Larger requests are not served from small segments.
pub const SMALL_REQUEST: u64 = 1 << 20;
pub const SMALL_SEGMENT: u64 = 2 << 20;
pub const LARGE_SEGMENT: u64 = 20 << 20;
const OWN_SEGMENT_FROM: u64 = 10 << 20;

/// Streams have numbers as in a journal.
const DEFAULT_STREAM: u8 = 1;
const LAST_STREAM: u8 = 254;

type Place = (i16, u64);

/// A line: nanoseconds since the journal began, microseconds since 1970, the device, and what happened.
type Told = (u64, u64, i16, TensorEvent);

/// A tensor that PyTorch could not make.
struct FailedTensor {
    /// Device, and time in microseconds since 1970.
    at: (i16, u64),
    size: u64,
    /// `Record.stack`
    stack: u32,
    /// When the snapshot that was taken of it ended, in microseconds since 1970; `None` if none was.
    shown_us: Option<u64>,
}

const SAME_FAILURE_US: u64 = 1_000_000;

/// PyTorch's failures, or the driver's, that can be the same as the one `at`. They are sorted by `place`: device, and time in
/// microseconds since 1970.
fn same_failures<T>(failures: &[T], place: impl Fn(&T) -> (i16, u64), at: (i16, u64)) -> impl Iterator<Item = &T> {
    let from = (at.0, at.1.saturating_sub(SAME_FAILURE_US));
    let until = (at.0, at.1.saturating_add(SAME_FAILURE_US));
    let first = failures.partition_point(|failed| place(failed) < from);
    failures[first..]
        .iter()
        .take_while(move |failed| place(failed) <= until)
}

/// Whether an allocation is of memory at an address, as a segment of PyTorch is, and not of addresses or objects alone.
fn is_memory(one: Allocation) -> bool {
    NameSpace::of(one.class.number()) == NameSpace::Address
}

/// The number of one of PyTorch's stacks in a record.
fn of_torch(number: u64) -> u32 {
    let number = u32::try_from(number).ok().filter(|&number| number < FIRST_OF_TORCH / 2);
    number.map_or(0, |number| FIRST_OF_TORCH + number)
}

#[derive(Default)]
pub struct Tensors {
    path: PathBuf,
    /// The settings of PyTorch's allocator: names and values.
    pub settings: Vec<(String, String)>,
    wall_start_ns: u64,
    pid: u32,
    /// How far PyTorch's clock is behind that of the journal, in nanoseconds.
    behind_ns: i64,
    /// By the time of a snapshot at a failure, the time of the driver's failure by the journal. What snapshots tell from the
    /// failure to this one lived then: the thread of the job waits.
    at_failures: BTreeMap<u64, u64>,
    /// How often PyTorch obtained a segment at this place.
    segments: HashMap<Place, u32>,
    /// The addresses that PyTorch's segments ever covered, by device.
    covered: HashMap<i16, Ranges>,
    /// Those of segments in private pools.
    private: HashMap<i16, Ranges>,
    /// PyTorch's failures.
    failures: Vec<FailedTensor>,
    /// Device and time of the failures in the journal.
    failed: Vec<(i16, u64)>,
    /// Which physical memory (of all, in the order of the journal) PyTorch mapped into its segments.
    mapped: Vec<u64>,
    /// Which was mapped nowhere: what PyTorch obtained for a request that then failed.
    unmapped: Vec<u64>,
    /// The version of PyTorch.
    pub torch: String,
    /// Whether the file tells what snapshots showed (`--torch state`), and not each tensor (`--torch record`).
    pub snapshots: bool,
    /// When they were taken, in microseconds since 1970.
    taken_us: Vec<u64>,
    /// Which memory (of all, in the order of the journal) came and went between two snapshots. It may have been a segment, and
    /// what was used of it is not known.
    not_shown: Ranges,
    /// Allocations that PyTorch made, and those of them that the file does not have.
    pub recorded: u64,
    pub lost: u64,
    pub damaged: u64,
    /// Until when the file is complete, in microseconds since 1970.
    until_us: u64,
}

impl Tensors {
    /// Reads the file beside a journal once. `None` if there is none.
    pub fn beside(journal: &Journal) -> io::Result<Option<Tensors>> {
        let path = TensorFile::beside(journal.path());
        let Some(mut file) = TensorFile::open(&path, Wanted::AllButStacks)? else {
            return Ok(None);
        };
        let mut tensors = Tensors {
            path,
            wall_start_ns: journal.header().wall_start_ns,
            pid: journal.header().pid,
            snapshots: file.snapshots,
            ..Tensors::default()
        };
        let mut obtained: HashMap<Place, Vec<u64>> = HashMap::new();
        while let Some(line) = file.next_line()? {
            match line {
                TensorLine::Stack { .. } => {}
                TensorLine::Event { time_us, device, event } => match event {
                    TensorEvent::SegmentObtained { address, size, pool } => {
                        obtained.entry((device, address)).or_default().push(time_us);
                        *tensors.segments.entry((device, address)).or_default() += 1;
                        let (covered, end) = (tensors.covered.entry(device).or_default(), address.saturating_add(size));
                        covered.cut(address, end);
                        covered.insert_joined(address, end);
                        if pool.is_some_and(|pool| pool != DEFAULT_POOL) {
                            let private = tensors.private.entry(device).or_default();
                            private.cut(address, end);
                            private.insert(address, end);
                        }
                    }
                    TensorEvent::OutOfMemory { size, stack } => tensors.failures.push(FailedTensor {
                        at: (device, time_us),
                        size,
                        stack: of_torch(stack),
                        shown_us: None,
                    }),
                    _ => {}
                },
                TensorLine::Drained {
                    time_us,
                    recorded,
                    lost,
                } => {
                    (tensors.until_us, tensors.recorded, tensors.lost) = (time_us, recorded, lost);
                    if file.snapshots {
                        tensors.taken_us.push(time_us);
                        let latest = tensors.failures.iter_mut().rev();
                        let fresh = latest.take_while(|failed| failed.shown_us.is_none());
                        fresh.for_each(|failed| failed.shown_us = Some(time_us));
                    }
                }
                TensorLine::Setting { name, value } => tensors.settings.push((name, value)),
            }
        }
        tensors.failures.sort_by_key(|failed| failed.at);
        (tensors.damaged, tensors.torch) = (file.damaged, file.torch);
        tensors.read_journal(journal, &obtained)?;
        Ok(Some(tensors))
    }

    /// Nanoseconds since the journal began, by its clock, of a time that PyTorch told.
    pub fn time_ns(&self, time_us: u64) -> u64 {
        let unix_ns = time_us.saturating_mul(1000).saturating_add_signed(self.behind_ns);
        let time_ns = unix_ns.saturating_sub(self.wall_start_ns);
        let next = self.at_failures.range(time_us..).next();
        next.map_or(time_ns, |(_, &failed_ns)| time_ns.min(failed_ns))
    }

    /// Until when the file is complete, in nanoseconds since the journal began.
    pub fn until_ns(&self) -> u64 {
        self.time_ns(self.until_us)
    }

    /// Whether PyTorch's segments were expandable.
    pub fn are_expandable(&self) -> bool {
        !self.mapped.is_empty()
    }

    /// What the file consists of, in a word.
    pub fn source(&self) -> &'static str {
        if self.snapshots { "snapshot" } else { "record" }
    }

    /// Whether PyTorch obtained memory at all.
    pub fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// How many snapshots were taken; `None` if the file tells each tensor.
    pub fn snapshots_taken(&self) -> Option<usize> {
        self.snapshots.then_some(self.taken_us.len())
    }

    /// The time of the first snapshot, in nanoseconds since the journal began; `None` if the file tells each tensor.
    pub fn first_snapshot_ns(&self) -> Option<u64> {
        let first = || self.taken_us.first().map_or(u64::MAX, |&time_us| self.time_ns(time_us));
        self.snapshots.then(first)
    }

    /// When the last snapshot up to a time was taken, both in nanoseconds since the journal began.
    pub fn snapshot_before(&self, time_ns: u64) -> Option<u64> {
        let taken = self.taken_us.iter().map(|&time_us| self.time_ns(time_us));
        taken.filter(|&taken_ns| taken_ns <= time_ns).max()
    }

    /// Whether all that was live is told of a time, in nanoseconds since the journal began. A snapshot of a failure on
    /// `failed_on` tells it, too.
    pub fn are_whole_at(&self, time_ns: u64, failed_on: Option<i16>) -> bool {
        let at_us = self.wall_start_ns.saturating_add(time_ns) / 1000;
        let failed = failed_on.and_then(|device| self.told_of((device, at_us), u64::MAX));
        let shown_ns = failed.and_then(|failed| Some(self.time_ns(failed.shown_us?)));
        !self.tells_at_least()
            || self.snapshot_before(time_ns) == Some(time_ns)
            || shown_ns.is_some_and(|ns| ns <= time_ns)
    }

    /// Whether more tensors may have been live than is told: between snapshots, or because some were lost or damaged.
    pub fn tells_at_least(&self) -> bool {
        self.snapshots || self.lost > 0 || self.damaged > 0
    }

    /// Until when the file tells what there was at a time, both in nanoseconds since the journal began. Snapshots tell nothing
    /// of what came after the last one.
    pub fn shown_until(&self, time_ns: u64) -> u64 {
        match self.snapshots {
            true => self.snapshot_before(time_ns).unwrap_or(0),
            false => self.until_ns(),
        }
    }

    /// Whether the file tells what was used of PyTorch's segments on a device when a call of the driver failed, at a time
    /// in nanoseconds since the journal began.
    pub fn show_use_at(&self, device: i16, time_ns: u64) -> bool {
        let at = (device, self.wall_start_ns.saturating_add(time_ns) / 1000);
        !self.snapshots
            || !self.covered.contains_key(&device)
            || same_failures(&self.failures, |failed| failed.at, at).next().is_some()
    }

    /// How often PyTorch had no memory for a tensor on a device.
    pub fn failures_of(&self, device: i16) -> usize {
        self.failures.iter().filter(|failed| failed.at.0 == device).count()
    }

    /// The addresses of segments in private pools, by device.
    pub(super) fn private(&self) -> impl Iterator<Item = (i16, &Ranges)> {
        self.private.iter().map(|(&device, ranges)| (device, ranges))
    }

    /// The devices on which PyTorch obtained segments.
    pub fn devices(&self) -> impl Iterator<Item = i16> {
        let devices: BTreeSet<i16> = self.covered.keys().copied().collect();
        devices.into_iter()
    }

    /// What the user should know of the file.
    pub fn note(&self) -> Option<String> {
        let (path, lost, damaged) = (shown(&self.path), self.lost, self.damaged);
        (lost > 0 || damaged > 0).then(|| format!("{path}: {lost} tensors are missing, {damaged} lines are damaged"))
    }

    /// The bytes of the tensor that PyTorch could not make when a request failed; `None` if the request was not PyTorch's.
    pub fn wanted(&self, record: &Record) -> Option<u64> {
        self.failed_tensor(record).map(|failed| failed.size)
    }

    /// The tensor that PyTorch could not make when a request failed.
    fn failed_tensor(&self, record: &Record) -> Option<&FailedTensor> {
        // A segment is as large as the tensor that it is for, or larger; an expandable one comes in pieces.
        let most = match record.event {
            Event::AllocFailed { requested, .. } if record.api.number() != Api::cuMemCreate.number() => requested,
            _ => u64::MAX,
        };
        let behind_us = self.behind_ns.unsigned_abs() / 1000;
        self.told_of((record.device, self.unix_us(record).saturating_sub(behind_us)), most)
    }

    /// What PyTorch told of a call of the driver's that failed at a place and time by PyTorch's clock: the first failure, of a
    /// tensor of at most so many bytes, that it told afterwards. It tells soon; if it told none, the last before is meant.
    fn told_of(&self, at: (i16, u64), most: u64) -> Option<&FailedTensor> {
        same_failures(&self.failures, |failed| failed.at, at)
            .filter(|failed| failed.size <= most)
            .min_by_key(|failed| (failed.at.1 < at.1, failed.at.1.abs_diff(at.1)))
    }

    /// Whether a call of the driver failed when PyTorch told of a failure.
    fn is_of_driver(&self, told: (i16, u64)) -> bool {
        same_failures(&self.failed, |&failed| failed, told).next().is_some()
    }

    fn unix_us(&self, record: &Record) -> u64 {
        self.wall_start_ns.saturating_add(record.time_ns) / 1000
    }

    /// The number of the next snapshot at the time of a record.
    fn next_snapshot(&self, record: &Record) -> usize {
        let at_us = self.unix_us(record);
        self.taken_us.partition_point(|&taken_us| taken_us < at_us)
    }

    fn covers(&self, device: i16, address: u64) -> bool {
        let covered = self.covered.get(&device);
        covered.is_some_and(|covered| covered.around(address).is_some())
    }

    /// Finds the physical memory of expandable segments, and how far PyTorch's clock is behind. `obtained` has the times at
    /// which PyTorch says that it obtained a segment at a place, in microseconds since 1970.
    ///
    /// The journal has the time before the call that obtained the segment, and PyTorch takes its own after the call. So a
    /// time of PyTorch's that is earlier shows that its clock is behind: it counts cycles, and makes times of them afterwards
    /// (`c10/util/ApproximateClock.h`). Snapshots have the system's time.
    fn read_journal(&mut self, journal: &Journal, obtained: &HashMap<Place, Vec<u64>>) -> io::Result<()> {
        /// If times differ by more, clocks are not the reason.
        const MOST_BEHIND_NS: i64 = 1_000_000_000;
        let mut made: HashMap<u64, u64> = HashMap::new();
        let mut count = 0;
        let mut somewhere: HashSet<u64> = HashSet::new();
        // When PyTorch obtained a segment last, by device.
        let mut obtained_ns: HashMap<i16, u64> = HashMap::new();
        let mut seen: HashMap<Place, usize> = HashMap::new();
        let mut behind_ns: Option<i64> = None;
        // Memory that is at no place of a segment, with its number and that of the next snapshot.
        let mut apart: HashMap<Place, (u64, usize)> = HashMap::new();
        let mut numbers = 0..;
        for record in journal.records() {
            let record = record?;
            match record.event {
                Event::Alloc(allocation) if allocation.class == Class::Vmm.into() => {
                    made.insert(allocation.address, count);
                    count += 1;
                }
                Event::Alloc(allocation) if is_memory(allocation) => {
                    let place = (record.device, allocation.address);
                    let number = numbers.next().unwrap_or(u64::MAX);
                    let Some(times) = obtained.get(&place) else {
                        if self.snapshots {
                            apart.insert(place, (number, self.next_snapshot(&record)));
                        }
                        continue;
                    };
                    obtained_ns.insert(record.device, record.time_ns);
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
                Event::Free { allocation, .. } if is_memory(allocation) => {
                    let came = apart.remove(&(record.device, allocation.address));
                    if let Some((number, _)) = came.filter(|&(_, next)| next == self.next_snapshot(&record)) {
                        self.not_shown.insert_joined(number, number + 1);
                    }
                }
                Event::Map { address, handle, .. } => {
                    let number = made.get(&handle).copied();
                    somewhere.extend(number);
                    if self.covers(record.device, address) {
                        obtained_ns.insert(record.device, record.time_ns);
                        self.mapped.extend(number);
                    }
                }
                Event::AllocFailed { result, .. } if is_out_of_memory(result) => {
                    let failed = (record.device, self.unix_us(&record));
                    self.failed.push(failed);
                    let told = self.told_of(failed, u64::MAX).filter(|_| self.snapshots);
                    if let Some(shown_us) = told.and_then(|told| told.shown_us) {
                        // It shows what lived at the last failure, and at those before it since PyTorch obtained something.
                        let just_before = record.time_ns.saturating_sub(1);
                        let since_ns = obtained_ns.get(&record.device).copied().unwrap_or(0);
                        let at_ns = self.at_failures.entry(shown_us).or_insert(just_before);
                        if *at_ns < since_ns {
                            *at_ns = just_before;
                        }
                    }
                }
                _ => {}
            }
        }
        self.behind_ns = behind_ns.filter(|_| !self.snapshots).unwrap_or(0).max(0);
        self.mapped.sort_unstable();
        self.mapped.dedup();
        self.failed.sort_unstable();
        if self.are_expandable() {
            self.unmapped = (0..count).filter(|number| !somewhere.contains(number)).collect();
        }
        Ok(())
    }
}

/// The stacks that PyTorch recorded beside a journal, by their numbers in the file; none if nothing was recorded. What a file has
/// beyond the most stacks is left out: a tensor of such a stack has none.
pub fn stacks(journal: &Path) -> io::Result<Vec<Vec<Frame>>> {
    /// Of one file. A stack takes memory though it is empty, and its frames 40 bytes each.
    const MOST_STACKS: usize = 1 << 18;
    const MOST_FRAMES: usize = 4 << 20;
    let (mut stacks, mut in_all) = (Vec::new(), 0);
    if let Some(mut file) = TensorFile::open(&TensorFile::beside(journal), Wanted::Stacks)? {
        while let Some(line) = file.next_line()? {
            if let TensorLine::Stack { frames, .. } = line {
                in_all += frames.len();
                if stacks.len() >= MOST_STACKS || in_all > MOST_FRAMES {
                    break;
                }
                stacks.push(frames);
            }
        }
    }
    Ok(stacks)
}
