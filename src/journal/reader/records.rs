//! The records of a whole journal in the order of their times.
//!
//! The slots of a file are nearly in the order of time. A thread may hold a slot in reserve, so a record can be later
//! than records in later slots. But no record is from before its slot was taken.
//!
//! The file is read twice, in blocks of slots; holes of the file, which read as unused slots, are passed over. The
//! first reading finds the earliest time in each block. The second reading sorts the records of each block. A record
//! is handed out if no record in a later block is earlier. All other records of the block wait in a heap. The more
//! disorder, the larger the heap. A journal that the library wrote has at most a few records of each thread there. A
//! file with so much disorder that the heap would grow beyond
//! `MOST_WAITING` is damaged or made up, and its records are handed out as they come.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::ops::Range;

use super::gaps::Gaps;
use super::journal::Journal;
use crate::format::{HEADER_SIZE, Record, SLOT_SIZE, SlotState};

/// Bytes that are read at once. The records of a block stay in the processor's cache.
const BLOCK_BYTES: usize = 256 << 10;
/// The largest number of records in the heap: about 100 MiB.
const MOST_WAITING: usize = 1 << 20;
/// Later than any time of a record.
const NEVER: u64 = u64::MAX;

/// Iterator over the committed records of a journal. A read error ends the iterator: it is the last item, after all
/// records that were read before it.
pub struct Records<'a> {
    journal: &'a Journal,
    /// Bytes of a block: a whole number of slots.
    block: usize,
    /// For each block, its offset and the earliest time in all later blocks. Empty before the first reading, and for a
    /// file of one block.
    behind: Vec<(u64, u64)>,
    /// The bytes of the file around the last block that are no hole.
    written: Range<u64>,
    buffer: Vec<u8>,
    /// Whether the first reading is done.
    looked_ahead: bool,
    /// Elements of `behind` that are of blocks read so far.
    passed: usize,
    /// The offset in the file where the blocks read so far end.
    read_to: u64,
    /// Records of the block that was read last, in their order.
    ready: Vec<Record>,
    /// The index in `ready` of the next record to hand out.
    next: usize,
    /// Records of earlier blocks that are not handed out yet, because some record of a later block is earlier.
    waiting: BinaryHeap<Waiting>,
    /// Records up to this time may be handed out.
    frontier: u64,
    unfinished: u64,
    damaged: u64,
    /// Slots of zeros that must have held a record.
    gaps: Option<Gaps>,
    failed: Option<io::Error>,
    done: bool,
}

struct Waiting(Record);

/// What records are ordered by.
pub(super) fn key(record: &Record) -> (u64, u64) {
    (record.time_ns, record.slot)
}

impl Ord for Waiting {
    /// The earliest record is the greatest, so that it leaves the heap first.
    fn cmp(&self, other: &Self) -> Ordering {
        key(&other.0).cmp(&key(&self.0))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl Journal {
    /// The records in the order of their times.
    pub fn records(&self) -> Records<'_> {
        Records::new(self)
    }
}

impl<'a> Records<'a> {
    pub(super) fn new(journal: &'a Journal) -> Self {
        Self::in_blocks(journal, BLOCK_BYTES)
    }

    pub(super) fn in_blocks(journal: &'a Journal, block: usize) -> Self {
        Records {
            journal,
            block,
            behind: Vec::new(),
            written: 0..0,
            buffer: Vec::new(),
            looked_ahead: false,
            passed: 0,
            read_to: HEADER_SIZE as u64,
            ready: Vec::new(),
            next: 0,
            waiting: BinaryHeap::new(),
            frontier: 0,
            unfinished: 0,
            damaged: 0,
            gaps: journal.gaps(),
            failed: None,
            done: false,
        }
    }

    /// How many bytes of the file have been handed out, for a progress bar. Records in the heap count as handed out.
    pub fn position(&self) -> u64 {
        let ahead = ((self.ready.len() - self.next) * SLOT_SIZE) as u64;
        self.read_to.saturating_sub(ahead).max(HEADER_SIZE as u64)
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

    /// The first reading, which fills `behind`. A process that still runs may commit records between the two readings.
    /// If such a record is earlier than records that were handed out already, it is handed out next. A read error ends
    /// the first reading silently; the second reading reports the error.
    fn look_ahead(&mut self) {
        let mut next = HEADER_SIZE as u64;
        // If the file has a single block, no later block can have an earlier record.
        if self.journal.size().saturating_sub(next) > self.block as u64 {
            while let Ok(Some(start)) = self.read(next) {
                let first = (start - HEADER_SIZE as u64) / SLOT_SIZE as u64;
                let earliest = (first..)
                    .zip(self.buffer.chunks_exact(SLOT_SIZE))
                    .filter_map(|(index, slot)| match SlotState::read(index, slot) {
                        SlotState::Committed(record) => Some(record.time_ns()),
                        _ => None,
                    })
                    .min();
                self.behind.push((start, earliest.unwrap_or(NEVER)));
                next = start + self.buffer.len() as u64;
            }
        }
        // Up to here `behind` has the earliest time in each block. The loop replaces it by the earliest time in all
        // later blocks.
        let mut earliest = NEVER;
        for (_, time) in self.behind.iter_mut().rev() {
            let own = std::mem::replace(time, earliest);
            earliest = earliest.min(own);
        }
        self.written = 0..0;
        self.looked_ahead = true;
    }

    fn keep(&mut self, record: Option<Record>) {
        match record {
            Some(record) => self.ready.push(record),
            None => self.damaged += 1,
        }
    }

    /// Reads the next block and sorts its records. At the end of the file, or after a read error, lets all waiting
    /// records be handed out.
    fn advance(&mut self) {
        if !self.looked_ahead {
            self.look_ahead();
        }
        self.waiting.extend(self.ready.drain(self.next..).map(Waiting));
        self.ready.clear();
        self.next = 0;
        let begun = match self.read(self.read_to) {
            Ok(begun) => begun,
            Err(error) => {
                self.failed = Some(error);
                None
            }
        };
        let Some(start) = begun else {
            self.frontier = NEVER;
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
            if let Some(gaps) = &mut self.gaps {
                match &state {
                    SlotState::Unused => {}
                    SlotState::Committed(record) => gaps.used(index, Some(record.tid())),
                    SlotState::UnderWay | SlotState::Damaged => gaps.used(index, None),
                }
            }
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
        // A running process may have written into a hole since the first reading, so the blocks may differ.
        while self
            .behind
            .get(self.passed)
            .is_some_and(|&(block, _)| block < self.read_to)
        {
            self.passed += 1;
        }
        self.frontier = match self.passed.checked_sub(1).and_then(|last| self.behind.get(last)) {
            Some(&(_, earliest)) => earliest,
            None if self.behind.is_empty() => NEVER,
            None => 0,
        };
        // The records are mostly in order already, and the sort is fast on such input.
        self.ready.sort_by_key(key);
    }
}

impl Iterator for Records<'_> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let ready = self.ready.get(self.next).map(key);
            let waiting = self.waiting.peek().map(|waiting| key(&waiting.0));
            let from_waiting = waiting.is_some_and(|waiting| ready.is_none_or(|ready| waiting < ready));
            match if from_waiting { waiting } else { ready } {
                Some((time, _)) if time <= self.frontier || self.waiting.len() > MOST_WAITING => {
                    if from_waiting {
                        return self.waiting.pop().map(|waiting| Ok(waiting.0));
                    }
                    self.next += 1;
                    return Some(Ok(self.ready[self.next - 1]));
                }
                _ if self.done => return self.failed.take().map(Err),
                _ => self.advance(),
            }
        }
    }
}
