//! The stacks of PyTorch's own record (`vramshim run --torch record`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use journal::format::{Frame, TensorEvent, TensorLine};
use journal::reader::TensorFile;

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
            let (time_us, device, event) = match line {
                TensorLine::Stack { number, frames } => {
                    stacks.insert(number, frames);
                    continue;
                }
                TensorLine::Event { time_us, device, event } => (time_us, device, event),
                _ => continue,
            };
            match event {
                TensorEvent::SegmentObtained { address, size } => {
                    empty.insert((device, address), address.saturating_add(size));
                }
                TensorEvent::Allocated { address, stack, .. } => {
                    if let Some((&segment, &end)) = empty.range(..=(device, address)).next_back()
                        && segment.0 == device
                        && address < end
                    {
                        empty.remove(&segment);
                        found.segments.entry(segment).or_default().push_back(stack);
                    }
                }
                TensorEvent::OutOfMemory { stack, .. } => found.failures.push((time_us, device, stack)),
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
