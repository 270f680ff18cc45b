//! The stacks of a job's requests: which code held the memory that is live at the end, which code asked for memory in
//! vain, and how many bytes have no stack.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use base::api::ClassCode;
use base::cuda::DriverError;
use journal::format::{Event, Frame, NoStack, StackKind, TensorLine};
use journal::reader::{Journal, Stacks, TensorFile};

use super::symbols;

/// The stacks beside a journal, with names for native frames as far as the files of their modules are here. `None` if
/// there are none.
pub fn load(journal: &Path) -> io::Result<Option<Stacks>> {
    let mut stacks = Stacks::beside(journal)?;
    if let Some(stacks) = &mut stacks {
        symbols::name(stacks);
    }
    Ok(stacks)
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// `Record.stack`: a stack of the journal, or the reason why there is none.
    Journal(u32),
    /// A stack of PyTorch's own record: that of the first tensor in the segment, for which PyTorch obtained it.
    Torch(u64),
}

/// Live allocations of one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub origin: Origin,
    pub bytes: u64,
    pub allocations: u64,
}

/// The last request that failed for lack of memory.
pub struct Failure {
    pub time_ns: u64,
    pub device: i16,
    pub requested: u64,
    pub origin: Origin,
}

/// What a journal's records say of stacks.
#[derive(Default)]
pub struct Uses {
    /// Requested bytes whose stack is in the journal.
    pub with: u64,
    /// Requested bytes whose Python frames are in PyTorch's own record.
    pub of_torch: u64,
    /// Requested bytes without a stack, by reason.
    pub without: BTreeMap<NoStack, u64>,
    /// What is live at the end, most bytes first.
    pub holders: Vec<Holder>,
    pub failure: Option<Failure>,
    torch: TorchStacks,
}

impl Uses {
    /// The frames of an origin, innermost first; none if there is no stack.
    pub fn frames<'a>(&'a self, stacks: Option<&'a Stacks>, origin: Origin) -> &'a [Frame] {
        match origin {
            Origin::Journal(number) => {
                let number = NoStack::stack(number).ok();
                number
                    .and_then(|number| stacks?.get(number))
                    .map_or(&[], |stack| &stack.frames)
            }
            Origin::Torch(number) => self.torch.frames(number).unwrap_or_default(),
        }
    }
}

/// The stacks of PyTorch's own record that say where its segments come from, and its failures.
#[derive(Clone, Default)]
pub struct TorchStacks {
    stacks: Arc<HashMap<u64, Vec<Frame>>>,
    /// For the device and address of a segment, the stack of the first tensor in each segment that was there, in the
    /// order of time.
    segments: HashMap<(i16, u64), VecDeque<u64>>,
    /// Time in microseconds since 1970, device and stack of each failure.
    failures: Vec<(u64, i16, u64)>,
}

impl TorchStacks {
    /// Reads PyTorch's record beside a journal, if there is one.
    pub fn load(journal: &Path) -> io::Result<TorchStacks> {
        let mut found = TorchStacks::default();
        let Some(mut file) = TensorFile::open(&TensorFile::beside(journal))? else {
            return Ok(found);
        };
        let mut stacks = HashMap::new();
        // Segments in which there was no tensor so far: device and address, and the end.
        let mut empty: BTreeMap<(i16, u64), u64> = BTreeMap::new();
        while let Some(line) = file.next_line()? {
            match line {
                TensorLine::Stack { number, frames } => {
                    stacks.insert(number, frames);
                }
                TensorLine::SegmentObtained {
                    device, address, size, ..
                } => {
                    empty.insert((device, address), address.saturating_add(size));
                }
                TensorLine::Allocated {
                    device, address, stack, ..
                } => {
                    if let Some((&segment, &end)) = empty.range(..=(device, address)).next_back()
                        && segment.0 == device
                        && address < end
                    {
                        empty.remove(&segment);
                        found.segments.entry(segment).or_default().push_back(stack);
                    }
                }
                TensorLine::OutOfMemory {
                    time_us, device, stack, ..
                } => found.failures.push((time_us, device, stack)),
                _ => {}
            }
        }
        found.stacks = Arc::new(stacks);
        Ok(found)
    }

    /// All stacks with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (u64, &[Frame])> {
        self.stacks.iter().map(|(&number, frames)| (number, frames.as_slice()))
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, number: u64) -> Option<&[Frame]> {
        self.stacks.get(&number).map(Vec::as_slice)
    }

    /// The stack of the segment that PyTorch obtained next at an address.
    pub fn segment(&mut self, device: i16, address: u64) -> Option<u64> {
        self.segments.get_mut(&(device, address))?.pop_front()
    }

    /// The stack of the last failure at about this time. PyTorch asks the driver twice before it reports a failure.
    pub fn failure(&self, device: i16, at_us: u64) -> Option<u64> {
        const ABOUT_US: u64 = 1_000_000;
        let mut failures = self.failures.iter().rev();
        let found = failures.find(|(time_us, on, _)| *on == device && time_us.abs_diff(at_us) < ABOUT_US);
        found.map(|&(_, _, stack)| stack)
    }
}

/// Goes through a journal's records. A read error ends the journal. If PyTorch's own record has Python frames where
/// `stacks` has native ones, PyTorch's are taken.
pub fn uses(path: &Path, stacks: Option<&Stacks>) -> Option<Uses> {
    let journal = Journal::open(path).ok()?;
    let began_us = journal.header().wall_start_ns / 1000;
    let mut uses = Uses {
        torch: TorchStacks::load(path).unwrap_or_default(),
        ..Uses::default()
    };
    let has_python = |number: u32| {
        let stack = NoStack::stack(number).ok().and_then(|number| stacks?.get(number));
        stack.is_some_and(|stack| stack.kind != StackKind::Native)
    };
    let mut live: HashMap<(ClassCode, i16, u64), (Origin, u64)> = HashMap::new();
    for record in journal.records().map_while(Result::ok) {
        match record.event {
            Event::Alloc(one) => {
                let of_torch = uses.torch.segment(record.device, one.address);
                let (origin, sum) = match (of_torch, NoStack::stack(record.stack)) {
                    (Some(stack), _) if !has_python(record.stack) => (Origin::Torch(stack), &mut uses.of_torch),
                    (_, Ok(_)) => (Origin::Journal(record.stack), &mut uses.with),
                    (_, Err(reason)) => (Origin::Journal(record.stack), uses.without.entry(reason).or_default()),
                };
                *sum = sum.saturating_add(one.requested);
                live.insert((one.class, record.device, one.address), (origin, one.requested));
            }
            Event::Free { allocation: one, .. } => {
                live.remove(&(one.class, record.device, one.address));
            }
            Event::AllocFailed { requested, result, .. } if result == DriverError::OUT_OF_MEMORY.0 => {
                let at_us = began_us.saturating_add(record.time_ns / 1000);
                let of_torch = || uses.torch.failure(record.device, at_us).map(Origin::Torch);
                uses.failure = Some(Failure {
                    time_ns: record.time_ns,
                    device: record.device,
                    requested,
                    origin: match has_python(record.stack) {
                        true => Origin::Journal(record.stack),
                        false => of_torch().unwrap_or(Origin::Journal(record.stack)),
                    },
                });
            }
            _ => {}
        }
    }
    let mut by_origin: BTreeMap<Origin, Holder> = BTreeMap::new();
    for (origin, bytes) in live.into_values() {
        let empty = Holder {
            origin,
            bytes: 0,
            allocations: 0,
        };
        let holder = by_origin.entry(origin).or_insert(empty);
        holder.bytes = holder.bytes.saturating_add(bytes);
        holder.allocations += 1;
    }
    uses.holders = by_origin.into_values().collect();
    uses.holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    Some(uses)
}
