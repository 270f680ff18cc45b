//! The stacks of a job's requests: which code held the memory that is live at the end, which code asked for memory in
//! vain, and how many bytes have no stack.

use std::collections::BTreeMap;

use journal::format::{Event, NoStack, Record};

use super::job::Observer;
use super::ledger::Ledger;
use super::live_set::{By, Holder, holders};
use super::origins::FIRST_OF_TORCH;
use super::scene::is_out_of_memory;

/// The last request that failed for lack of memory.
pub struct Failure {
    pub time_ns: u64,
    pub device: i16,
    pub requested: u64,
    pub stack: u32,
}

/// What the records of a job say of stacks. These have the numbers of `Origins`.
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

impl Observer for Uses {
    fn after(&mut self, _: &Ledger, record: &Record) {
        match record.event {
            Event::Alloc(one) => {
                let sum = match NoStack::stack(record.stack) {
                    Ok(number) if number >= FIRST_OF_TORCH => &mut self.of_torch,
                    Ok(_) => &mut self.with,
                    Err(reason) => self.without.entry(reason).or_default(),
                };
                *sum = sum.saturating_add(one.requested);
            }
            Event::AllocFailed { requested, result, .. } if is_out_of_memory(result) => {
                self.failure = Some(Failure {
                    time_ns: record.time_ns,
                    device: record.device,
                    requested,
                    stack: record.stack,
                });
            }
            _ => {}
        }
    }
}

impl Uses {
    /// At the end of the journal.
    pub fn finish(&mut self, ledger: &Ledger) {
        let live = ledger.live_unsorted().filter(|live| live.counts());
        self.holders = holders(live, By::Stack, (0, 0));
        self.holders.sort_by_key(|holder| std::cmp::Reverse(holder.requested));
    }
}
