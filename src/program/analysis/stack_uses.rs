//! The stacks of a job's requests: which code held the memory that is live at the end, and how many bytes have no stack.

use std::collections::BTreeMap;

use journal::format::{Event, NoStack, Record};

use super::job::Observer;
use super::ledger::Ledger;
use super::live_set::{By, Holder, holders};
use super::origins::FIRST_OF_TORCH;

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
}

impl Observer for Uses {
    fn after(&mut self, _: &Ledger, record: &Record) {
        if let Event::Alloc(one) = record.event {
            let sum = match NoStack::stack(record.stack) {
                Ok(number) if number >= FIRST_OF_TORCH => &mut self.of_torch,
                Ok(_) => &mut self.with,
                Err(reason) => self.without.entry(reason).or_default(),
            };
            *sum = sum.saturating_add(one.requested);
        }
    }
}

impl Uses {
    pub fn finish(&mut self, ledger: &Ledger) {
        let live = ledger.live_unsorted().filter(|live| live.counts());
        self.holders = holders(live, By::Stack, (0, 0));
        self.holders.sort_by_key(|holder| std::cmp::Reverse(holder.requested));
    }
}
