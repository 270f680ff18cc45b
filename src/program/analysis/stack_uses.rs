//! The stacks of a job's requests: which code held the memory that is live at the end, which code asked for memory in
//! vain, and how many bytes have no stack.

use std::collections::BTreeMap;
use std::path::Path;

use journal::format::{Event, NoStack, Record};
use journal::reader::Journal;

use super::labels::Labels;
use super::live_set::{self, Holder, Key, Moment};
use super::origins::FIRST_OF_TORCH;
use super::out_of_memory::is_out_of_memory;

/// The last request that failed for lack of memory.
pub struct Failure {
    pub time_ns: u64,
    pub device: i16,
    pub requested: u64,
    pub stack: u32,
}

/// What a journal's records say of stacks. These have the numbers of `Origins`.
#[derive(Default)]
pub struct Uses {
    /// Requested bytes whose stack is in the journal.
    pub with: u64,
    /// Requested bytes whose Python frames are in PyTorch's own record.
    pub of_torch: u64,
    /// Requested bytes without a stack, by reason.
    pub without: BTreeMap<NoStack, u64>,
    /// What is live at the end, most requested bytes first.
    pub holders: Vec<Holder>,
    pub failure: Option<Failure>,
}

/// Goes through a journal's records. If PyTorch's own record has Python frames where the journal has native ones,
/// PyTorch's are taken.
pub fn stack_uses(path: &Path, labels: &Labels) -> Option<Uses> {
    let journal = Journal::open(path).ok()?;
    let mut uses = Uses::default();
    let mut origins = labels.origins.clone();
    let mut note = |record: &Record| {
        let mut resolved = origins.resolve(record);
        // A stack that the file does not have keeps its number.
        if resolved.stack < FIRST_OF_TORCH && NoStack::stack(record.stack).is_ok() {
            resolved.stack = record.stack;
        }
        match record.event {
            Event::Alloc(one) => {
                let sum = match NoStack::stack(resolved.stack) {
                    Ok(number) if number >= FIRST_OF_TORCH => &mut uses.of_torch,
                    Ok(_) => &mut uses.with,
                    Err(reason) => uses.without.entry(reason).or_default(),
                };
                *sum = sum.saturating_add(one.requested);
            }
            Event::AllocFailed { requested, result, .. } if is_out_of_memory(result) => {
                uses.failure = Some(Failure {
                    time_ns: record.time_ns,
                    device: record.device,
                    requested,
                    stack: resolved.stack,
                });
            }
            _ => {}
        }
        resolved
    };
    let sets = live_set::read(&journal, &[Moment::End], &mut note).ok()?;
    let live = sets
        .iter()
        .flatten()
        .flat_map(|set| &set.devices)
        .flat_map(|set| &set.live);
    uses.holders = live_set::holders(live, |live| Key::Stack(live.stack));
    uses.holders.sort_by_key(|holder| std::cmp::Reverse(holder.requested));
    Some(uses)
}
