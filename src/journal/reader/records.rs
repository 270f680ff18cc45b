//! The records of a whole journal in the order of their times.
//!
//! The file is read in blocks of slots; holes of the file, which read as unused slots, are passed over. `order` says which
//! records wait until later slots were read.

use std::io;
use std::ops::Range;

use super::gaps::Gaps;
use super::journal::Journal;
use super::order::{LEAST_HELD, MOST_HELD, Order};
use crate::format::{BATCH, HEADER_SIZE, Record, SLOT_SIZE, SlotState};

/// Bytes that are read at once. The records of a block stay in the processor's cache.
const BLOCK_BYTES: usize = 256 << 10;

/// Iterator over the committed records of a journal. A read error ends the iterator: it is the last item, after all
/// records that were read before it.
pub struct Records<'a> {
    journal: &'a Journal,
    /// Bytes of a block: a whole number of slots.
    block: usize,
    /// How many records may wait.
    held: usize,
    /// The bytes of the file around the last block that are no hole.
    written: Range<u64>,
    buffer: Vec<u8>,
    /// The offset in the file where the blocks read so far end.
    read_to: u64,
    order: Order,
    unfinished: u64,
    damaged: u64,
    /// Slots of zeros that must have held a record.
    gaps: Option<Gaps>,
    failed: Option<io::Error>,
    done: bool,
}

impl Journal {
    pub fn records(&self) -> Records<'_> {
        Records::in_blocks(self, BLOCK_BYTES)
    }
}

impl<'a> Records<'a> {
    pub(super) fn in_blocks(journal: &'a Journal, block: usize) -> Self {
        Records {
            journal,
            block,
            held: 0,
            written: 0..0,
            buffer: Vec::new(),
            read_to: HEADER_SIZE as u64,
            order: Order::default(),
            unfinished: 0,
            damaged: 0,
            gaps: journal.gaps(),
            failed: None,
            done: false,
        }
    }

    /// How many bytes of the file have been handed out, for a progress bar.
    pub fn position(&self) -> u64 {
        self.read_to
            .saturating_sub((self.order.waiting.len() * SLOT_SIZE) as u64)
            .max(HEADER_SIZE as u64)
    }

    /// The number of slots read so far whose event has begun and is not finished.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// The number of slots read so far whose bytes are not those that the library wrote, or say what cannot be true. They
    /// are left out. Slots of zeros that must have held a record count too, so the number is a lower bound.
    pub fn damaged(&self) -> u64 {
        self.damaged + self.gaps.as_ref().map_or(0, Gaps::missing)
    }

    /// Reads the next block of slots that are no hole, from `start` on. Returns where it begins; `None` at the end of
    /// the file.
    fn read(&mut self, start: u64) -> io::Result<Option<u64>> {
        if !self.written.contains(&start) {
            match self.journal.written_from(start) {
                Some(written) => self.written = written,
                None => return Ok(None),
            }
        }
        // A hole may begin or end within a slot.
        let slot = SLOT_SIZE as u64;
        let start = self.written.start.max(start) / slot * slot;
        let end = self.written.end.next_multiple_of(slot).min(self.journal.size());
        self.buffer.resize((end - start).min(self.block as u64) as usize, 0);
        let got = self.journal.read(&mut self.buffer, start)?;
        self.buffer.truncate(got / SLOT_SIZE * SLOT_SIZE);
        Ok((!self.buffer.is_empty()).then_some(start))
    }

    fn keep(&mut self, record: Option<Record>) {
        match record {
            Some(record) => self.order.add(record),
            None => self.damaged += 1,
        }
    }

    /// Reads the next block and sorts its records among those that wait.
    fn advance(&mut self) {
        let begun = self.read(self.read_to).unwrap_or_else(|error| {
            self.failed = Some(error);
            None
        });
        let Some(start) = begun else {
            self.done = true;
            self.buffer = Vec::new();
            if let Some(gaps) = self.gaps.as_mut().filter(|_| self.failed.is_none()) {
                gaps.end(self.journal.slots());
            }
            return;
        };
        let first = (start - HEADER_SIZE as u64) / SLOT_SIZE as u64;
        let buffer = std::mem::take(&mut self.buffer);
        for (index, slot) in (first..).zip(buffer.chunks_exact(SLOT_SIZE)) {
            let state = SlotState::read(index, slot);
            let tid = match &state {
                SlotState::Unused => continue,
                SlotState::Committed(record) => Some(record.tid()),
                SlotState::UnderWay | SlotState::Damaged => None,
            };
            self.gaps.iter_mut().for_each(|gaps| gaps.used(index, tid));
            match state {
                SlotState::Unused => {}
                SlotState::UnderWay => self.unfinished += 1,
                SlotState::Committed(record) => self.keep(record.decode(index)),
                SlotState::Damaged => {
                    let again = self.journal.slot_again(index);
                    self.keep(again.and_then(|record| record.decode(index)));
                }
            }
        }
        self.buffer = buffer;
        self.read_to = start + self.buffer.len() as u64;
        self.order.sort();
        let threads = self.gaps.as_ref().map_or(usize::MAX, |gaps| gaps.threads.len());
        let late = threads.saturating_mul(BATCH as usize).clamp(LEAST_HELD, MOST_HELD);
        self.held = late + self.journal.ring().map_or(0, |(_, slots, _)| slots as usize);
    }
}

impl Iterator for Records<'_> {
    type Item = io::Result<Record>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while !self.done && self.order.waiting.len() <= self.held {
            self.advance();
        }
        match self.order.waiting.pop_front() {
            Some(record) => Some(Ok(record)),
            None => self.failed.take().map(Err),
        }
    }
}
