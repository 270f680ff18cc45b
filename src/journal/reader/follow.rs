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
//! A long file is read in portions. The slots are not in the order of the times: a thread holds up to 64 slots in
//! reserve, and may use them after other threads have used later slots. So the next portion can have records that are
//! earlier than some records that were read already, at most than the 64 latest of each thread. Therefore the `HELD`
//! latest records wait, and only earlier records are handed out. This also bounds the memory. For the same reason at
//! most `HELD` slots can be in reserve: in a file that has more of them the first ones are given up. A long hole of the
//! file, which no thread can have in reserve, is passed over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::error::{OpenError, Problem};
use super::journal::{Journal, read_together};
use super::records::key;
use crate::format::{RawRecord, Record, SLOT_SIZE, SlotState};

/// The largest number of slots that are read at once.
const PORTION: u64 = 1 << 16;
/// How many records may wait: enough for 1024 threads with 64 slots each.
const HELD: usize = 1 << 16;
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
    /// The largest number of slots that are read at once (`PORTION`, fewer in tests).
    portion: u64,
    buffer: Vec<u8>,
    read: Read,
}

/// What was read so far.
#[derive(Default)]
struct Read {
    /// The first slot that was not read yet.
    next: u64,
    /// Slots below `next` that were unused when they were read, in order. A thread holds or held each in reserve.
    reserved: Vec<u64>,
    /// Slots below `next` whose event was under way when they were read.
    marked: Vec<Marked>,
    /// Records that were read and not yet moved to `waiting`.
    found: Vec<Record>,
    /// Records that wait to be handed out, in order.
    waiting: VecDeque<Record>,
    /// The latest time of a record that was read.
    latest: u64,
    /// The records that each slot of the ring had at the last look, and how often a slot had been taken.
    ring: Vec<Option<RawRecord>>,
    ring_taken: u64,
    /// The least time that a record can have in a slot that was not marked at the last look.
    unmarked_from: u64,
    /// Records up to this time may be handed out.
    frontier: u64,
    /// The greatest key of the records that were handed out.
    handed_out: (u64, u64),
    late: u64,
    /// Records that cannot be true, which were left out.
    impossible: u64,
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
            portion,
            buffer: Vec::new(),
            read: Read::default(),
        }
    }

    /// Forgets everything that was read, so that reading begins again with the first record.
    pub fn restart(&mut self) {
        self.read = Read::default();
    }

    /// The journal, with the header as it was at the last look.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The number of bytes of slots that were read, and of slots that are in the journal.
    pub fn progress(&self) -> (u64, u64) {
        let bytes = |slots: u64| slots * SLOT_SIZE as u64;
        (bytes(self.read.next), bytes(self.end().max(self.read.next)))
    }

    /// The number of slots whose event has begun and is not finished.
    pub fn unfinished(&self) -> u64 {
        self.read.marked.len() as u64
    }

    /// The number of records that were left out, because they cannot be true.
    pub fn damaged(&self) -> u64 {
        self.read.impossible
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

    /// Moves the records in `found` to their places in `waiting`. Mostly all of `found` is later than all of `waiting`.
    fn put_in_order(&mut self) {
        self.read.found.sort_by_key(key);
        let Some(first) = self.read.found.first().map(key) else {
            return;
        };
        let before = self.read.waiting.partition_point(|event| key(event) < first);
        let mut among = self.read.waiting.split_off(before).into_iter().peekable();
        for event in self.read.found.drain(..) {
            while let Some(earlier) = among.next_if(|other| key(other) < key(&event)) {
                self.read.waiting.push_back(earlier);
            }
            self.read.waiting.push_back(event);
        }
        self.read.waiting.extend(among);
    }

    /// Sets the frontier to the least time that a record can have that was not read yet.
    fn settle(&mut self) {
        self.put_in_order();
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

    /// The number of slots that threads took, but at most the number of slots in the file.
    fn end(&self) -> u64 {
        self.journal.claimed()
    }

    /// Whether there are taken slots that were not read yet.
    fn is_behind(&self) -> bool {
        self.read.next < self.end()
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
        self.put_in_order();
        if !self.is_behind() {
            self.read.unmarked_from = self.read.unmarked_from.max(known);
        }
    }

    fn find(&mut self, record: RawRecord, slot: u64) {
        let Some(event) = record.decode(slot) else {
            self.read.impossible += 1;
            return;
        };
        self.read.latest = self.read.latest.max(event.time_ns);
        self.read.found.push(event);
    }

    /// Reads the ring again, if a full journal has one, and takes the records that are new in it. Records that came and
    /// went between two looks are lost, and the journal's header counts them.
    fn look_at_ring(&mut self) -> Result<(), OpenError> {
        let Some((first, count, taken)) = self.journal.ring() else {
            return Ok(());
        };
        if taken == self.read.ring_taken {
            return Ok(());
        }
        self.read.ring.resize(count as usize, None);
        let got = self.read_slots(first, count)?;
        let mut under_way = false;
        for place in 0..got {
            let slot = &self.buffer[place as usize * SLOT_SIZE..][..SLOT_SIZE];
            match SlotState::read(first + place, slot) {
                SlotState::Committed(record) if self.read.ring[place as usize] != Some(record) => {
                    self.read.ring[place as usize] = Some(record);
                    self.find(record, first + place);
                }
                SlotState::Committed(_) | SlotState::Unused => {}
                SlotState::UnderWay | SlotState::Damaged => under_way = true,
            }
        }
        // A slot that is being written is read again at the next look.
        if !under_way {
            self.read.ring_taken = taken;
        }
        Ok(())
    }

    /// Reads the next portion of slots that were never read.
    fn look_at_new(&mut self) -> Result<(), OpenError> {
        let first = self.journal.past_hole(self.read.next);
        self.read.next = first;
        let count = self.end().saturating_sub(first).min(self.portion);
        let got = self.read_slots(first, count)?;
        let ring = self
            .journal
            .ring()
            .map_or(0..0, |(first, count, _)| first..first + count);
        for index in first..first + got {
            // `look_at_ring` reads the slots of the ring.
            if !ring.contains(&index) && !self.take(index, first) {
                self.read.reserved.push(index);
            }
        }
        let too_many = self.read.reserved.len().saturating_sub(HELD);
        self.read.reserved.drain(..too_many);
        self.read.next += got;
        Ok(())
    }

    /// Reads again the slots that threads held in reserve. Slots that are near each other are read together.
    fn look_at_reserved(&mut self) -> Result<(), OpenError> {
        let reserved = std::mem::take(&mut self.read.reserved);
        let mut rest = &reserved[..];
        while let Some(&first) = rest.first() {
            let near = read_together(rest, self.portion);
            let got = self.read_slots(first, rest[near - 1] - first + 1)?;
            for &index in &rest[..near] {
                if index - first >= got || !self.take(index, first) {
                    self.read.reserved.push(index);
                }
            }
            rest = &rest[near..];
        }
        Ok(())
    }

    /// Reads again the slots whose event was under way.
    fn look_at_marked(&mut self) -> Result<(), OpenError> {
        for marked in std::mem::take(&mut self.read.marked) {
            let index = marked.slot;
            let was = self.read.marked.len();
            if self.read_slots(index, 1)? == 0 || !self.take(index, index) {
                self.read.marked.push(marked);
            } else if let Some(again) = self.read.marked.get_mut(was) {
                // The slot is still marked. The old entry replaces the new one, because `from` and `until` must be
                // those of the look that first found the slot marked.
                *again = marked;
            }
        }
        Ok(())
    }

    /// Reads `count` slots from slot `first` on into the buffer. Returns the number of slots that the file had.
    fn read_slots(&mut self, first: u64, count: u64) -> Result<u64, OpenError> {
        let got = self.journal.read_slots(&mut self.buffer, first, count);
        got.map_err(|error| self.journal.error(Problem::Io(error)))
    }

    /// Examines slot `index` in the buffer, which begins with slot `first`. Adds the slot's record to `found`, or the
    /// slot to `marked`. Returns false if the slot is unused.
    fn take(&mut self, index: u64, first: u64) -> bool {
        let slot = &self.buffer[(index - first) as usize * SLOT_SIZE..][..SLOT_SIZE];
        match SlotState::read(index, slot) {
            SlotState::Unused => return false,
            SlotState::Committed(record) => self.find(record, index),
            SlotState::UnderWay | SlotState::Damaged => self.read.marked.push(Marked {
                slot: index,
                from: self.read.unmarked_from,
                until: Instant::now() + PATIENCE,
            }),
        }
        // More threads than that do not have calls under way: the slots are damaged.
        self.read.marked.truncate(HELD);
        true
    }
}

/// Hands out the records that need not wait. After `None`, a call of `follow` can make more records available.
impl Iterator for Follower {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let (time, _) = key(self.read.waiting.front()?);
        let too_many = self.read.waiting.len() > self.held;
        if time > self.read.frontier && !too_many {
            return None;
        }
        let event = self.read.waiting.pop_front()?;
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
