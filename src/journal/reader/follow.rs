//! Reads a journal while its process still writes it, and hands out each record once, in the order of the times.
//!
//! The follower reads the file again and again; each time is a *look*. A look reads the slots that were taken since the
//! last look, and again the slots that held no record at the last look. A record waits in memory until no earlier
//! record can come. How early a record can be follows from `writer::Journal::claim`: the writer *marks* the slot
//! (`UNDER_WAY`) before it reads the clock. So:
//!
//! - If a slot was not marked when a look began, its record is later than every record that was read before that look.
//! - If a slot is marked, its record is later than every record that was read before the last look that found the slot
//!   unmarked. All later records are held back until the slot is committed: mostly for less than a microsecond.
//!
//! A call that waits for the device may be under way for long. After `PATIENCE` the slot of such a call holds back no
//! records any more. The record of the call is handed out when it comes, and `late` counts it.
//!
//! A long file is read in portions, and the latest records wait (`order`). At most `HELD` slots can be in reserve: in a
//! file that has more of them the first ones are given up. A long hole of the file, which no thread can have in reserve, is
//! passed over.

use std::time::{Duration, Instant};

use super::error::{OpenError, Problem};
use super::journal::Journal;
use super::order::{HELD, Order, key};
use super::slots::{Found, Slots};
use crate::format::{Record, SLOT_SIZE};

/// The largest number of slots that are read at once.
const PORTION: u64 = 1 << 16;
/// How long a call that is under way holds back later records.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often `follow` reads the marked slots again before it returns.
const RETRIES: u32 = 4;
/// The pause before each of these retries.
const RETRY_PAUSE: Duration = Duration::from_micros(300);

/// Reads a journal while its process writes it.
pub struct Follower {
    journal: Journal,
    /// How many records may wait (`HELD`, fewer in tests).
    held: usize,
    buffer: Vec<u8>,
    slots: Slots,
    read: Read,
}

/// What was read so far.
#[derive(Default)]
struct Read {
    /// Slots whose event was under way when they were read.
    marked: Vec<Marked>,
    order: Order,
    /// The latest time of a record that was read.
    latest: u64,
    /// The least time that a record can have in a slot that was not marked at the last look.
    unmarked_from: u64,
    /// Records up to this time may be handed out.
    frontier: u64,
    /// The greatest key of the records that were handed out.
    handed_out: (u64, u64),
    late: u64,
    /// Whether the follower has once reached the end of the file.
    begun: bool,
}

/// A slot whose event is under way.
struct Marked {
    slot: u64,
    /// The least time that the record of this slot can have.
    from: u64,
    /// Until when this slot holds back records that are later than `from`.
    until: Instant,
}

impl Marked {
    fn holds_back(&self) -> bool {
        Instant::now() < self.until
    }
}

impl Follower {
    pub fn new(journal: Journal) -> Self {
        Self::in_portions(journal, PORTION, HELD)
    }

    pub(super) fn in_portions(journal: Journal, portion: u64, held: usize) -> Self {
        Follower {
            journal,
            held,
            buffer: Vec::new(),
            slots: Slots::new(portion, HELD),
            read: Read::default(),
        }
    }

    /// Forgets everything that was read, so that reading begins again with the first record.
    pub fn restart(&mut self) {
        self.slots.restart();
        self.read = Read::default();
    }

    /// The journal, with the header as it was at the last look.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The number of bytes of slots that were read, and of slots that are in the journal.
    pub fn progress(&self) -> (u64, u64) {
        let bytes = |slots: u64| slots * SLOT_SIZE as u64;
        (
            bytes(self.slots.next),
            bytes(self.journal.claimed().max(self.slots.next)),
        )
    }

    /// The number of slots whose event has begun and is not finished.
    pub fn unfinished(&self) -> u64 {
        self.read.marked.len() as u64
    }

    /// The number of records that were left out, because they cannot be true.
    pub fn damaged(&self) -> u64 {
        self.slots.impossible
    }

    /// The number of records that were handed out after a later record.
    pub fn late(&self) -> u64 {
        self.read.late
    }

    /// Reads at most one portion of new slots in each of at most two looks. `next` then hands out the records that need
    /// not wait. Returns false if there is more to read.
    pub fn follow(&mut self) -> Result<bool, OpenError> {
        self.look()?;
        if self.is_behind() {
            return Ok(false);
        }
        // After a second look, no record can come that is earlier than the records that the first look read.
        self.look()?;
        for _ in 0..RETRIES {
            if !self.read.marked.iter().any(Marked::holds_back) {
                break;
            }
            std::thread::sleep(RETRY_PAUSE);
            self.look_at_marked()?;
        }
        self.settle();
        Ok(!self.is_behind())
    }

    /// Sets the frontier to the least time that a record can have that was not read yet.
    fn settle(&mut self) {
        self.read.order.sort();
        if !self.read.begun {
            self.read.begun = true;
            // The marked events began before the first look, so their times are unknown. They must not hold back any
            // record: otherwise no record could be handed out before the events end.
            for marked in &mut self.read.marked {
                marked.until = Instant::now();
            }
        }
        let held_back = self.read.marked.iter().filter(|marked| marked.holds_back());
        self.read.frontier = held_back
            .map(|marked| marked.from)
            .fold(self.read.unmarked_from, u64::min);
    }

    /// Lets `next` hand out all records that were read. The caller will not call `follow` again.
    pub fn finish(&mut self) {
        self.read.frontier = u64::MAX;
    }

    /// Whether there are taken slots that were not read yet.
    fn is_behind(&self) -> bool {
        self.slots.next < self.journal.claimed()
    }

    /// One look: reads the slots that held no record at the last look, and a portion of the slots taken since.
    fn look(&mut self) -> Result<(), OpenError> {
        // The process goes on writing during the look. So a record that this look does not find is later than all
        // records that were read before the look, but not always later than those read during the look.
        let known = self.read.latest;
        self.journal.refresh()?;
        self.look_at_marked()?;
        self.look_at_reserved()?;
        self.look_at_new()?;
        self.look_at_ring()?;
        self.looked(known);
        Ok(())
    }

    /// Ends a look. `known` is the latest time of the records that were read before the look began.
    fn looked(&mut self, known: u64) {
        self.read.order.sort();
        if !self.is_behind() {
            self.read.unmarked_from = self.read.unmarked_from.max(known);
        }
    }

    /// Reads the ring of a full journal.
    fn look_at_ring(&mut self) -> Result<(), OpenError> {
        let mut each = |record| self.read.find(record);
        let done = self.slots.read_ring(&self.journal, &mut self.buffer, &mut each);
        self.done(done)
    }

    /// Reads the next portion of slots that were never read.
    fn look_at_new(&mut self) -> Result<(), OpenError> {
        let mut each = |index, found| self.read.is_reserved(index, found);
        let done = self.slots.read_new(&self.journal, &mut self.buffer, &mut each);
        self.done(done)
    }

    /// Reads again the slots that threads held in reserve.
    fn look_at_reserved(&mut self) -> Result<(), OpenError> {
        let mut each = |index, found| self.read.is_reserved(index, found);
        let done = self.slots.read_open(&self.journal, &mut self.buffer, &mut each);
        self.done(done)
    }

    /// Reads again the slots whose event was under way. A slot that is still marked keeps its entry: `from` and `until` must
    /// be those of the look that first found the slot marked.
    fn look_at_marked(&mut self) -> Result<(), OpenError> {
        for marked in std::mem::take(&mut self.read.marked) {
            let found = self.slots.read_one(&self.journal, &mut self.buffer, marked.slot);
            match self.done(found)? {
                Some(Found::Record(record)) => self.read.find(record),
                Some(Found::UnderWay | Found::Unused) => self.read.marked.push(marked),
                None => {}
            }
        }
        Ok(())
    }

    fn done<T>(&self, outcome: std::io::Result<T>) -> Result<T, OpenError> {
        outcome.map_err(|error| self.journal.error(Problem::Io(error)))
    }
}

impl Read {
    fn find(&mut self, record: Record) {
        self.latest = self.latest.max(record.time_ns);
        self.order.add(record);
    }

    /// Takes the record of a slot, or notes that the slot is marked. Whether the slot is in reserve: it has neither.
    fn is_reserved(&mut self, slot: u64, found: Found) -> bool {
        match found {
            Found::Record(record) => self.find(record),
            // No job has so many calls under way: these slots are damaged.
            Found::UnderWay if self.marked.len() >= HELD => {}
            Found::UnderWay => self.marked.push(Marked {
                slot,
                from: self.unmarked_from,
                until: Instant::now() + PATIENCE,
            }),
            Found::Unused => return true,
        }
        false
    }
}

/// Hands out the records that need not wait. After `None`, a call of `follow` can make more records available.
impl Iterator for Follower {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let (time, _) = key(self.read.order.first()?);
        if time > self.read.frontier && self.read.order.len() <= self.held {
            return None;
        }
        let event = self.read.order.take_first()?;
        self.read.late += u64::from(key(&event) < self.read.handed_out);
        self.read.handed_out = self.read.handed_out.max(key(&event));
        if self.is_behind() {
            self.read.unmarked_from = self.read.unmarked_from.max(time);
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests;
