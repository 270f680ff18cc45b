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
use super::journal::Journal;
use super::records::key;
use crate::format::{HEADER_SIZE, RawRecord, Record, SLOT_SIZE, SlotState};

/// The largest number of slots that are read at once.
const PORTION: u64 = 1 << 16;
/// If two slots in reserve are at most this far apart, they are read together with the slots between them.
const NEAR: u64 = 64;
/// How many records may wait: enough for 1024 threads with 64 slots each.
const HELD: usize = 1 << 16;
/// A hole with more slots than this has none in reserve. What the library made room for, and no thread has written yet,
/// is a hole, too.
const LONGEST_RESERVE: u64 = HELD as u64;
/// How long a call that is under way holds back later records.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often `follow` reads the marked slots again before it returns.
const RETRIES: u32 = 4;
/// The pause before each of these retries.
const RETRY_PAUSE: Duration = Duration::from_micros(300);

/// Reads a journal while its process writes it.
pub struct Follower {
    journal: Journal,
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
    /// How many records may wait (`HELD`, fewer in tests).
    held: usize,
    /// The largest number of slots that are read at once (`PORTION`, fewer in tests).
    portion: u64,
    buffer: Vec<u8>,
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
            next: 0,
            reserved: Vec::new(),
            marked: Vec::new(),
            found: Vec::new(),
            waiting: VecDeque::new(),
            latest: 0,
            ring: Vec::new(),
            ring_taken: 0,
            unmarked_from: 0,
            frontier: 0,
            handed_out: (0, 0),
            late: 0,
            impossible: 0,
            begun: false,
            held,
            portion,
            buffer: Vec::new(),
        }
    }

    /// Forgets everything that was read, so that reading begins again with the first record.
    pub fn restart(&mut self) {
        self.next = 0;
        self.reserved.clear();
        self.marked.clear();
        self.found.clear();
        self.waiting.clear();
        self.latest = 0;
        self.ring.clear();
        self.ring_taken = 0;
        self.unmarked_from = 0;
        self.frontier = 0;
        self.handed_out = (0, 0);
        self.late = 0;
        self.impossible = 0;
        self.begun = false;
    }

    /// The journal, with the header as it was at the last look.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The number of bytes of slots that were read, and of slots that are in the journal.
    pub fn progress(&self) -> (u64, u64) {
        let bytes = |slots: u64| slots * SLOT_SIZE as u64;
        (bytes(self.next), bytes(self.end().max(self.next)))
    }

    /// The number of slots whose event has begun and is not finished.
    pub fn unfinished(&self) -> u64 {
        self.marked.len() as u64
    }

    /// The number of records that were left out, because they cannot be true.
    pub fn damaged(&self) -> u64 {
        self.impossible
    }

    /// The number of records that were handed out after a later record.
    pub fn late(&self) -> u64 {
        self.late
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
            if !self.marked.iter().any(Marked::holds_back) {
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
        self.found.sort_by_key(key);
        let Some(first) = self.found.first().map(key) else {
            return;
        };
        let before = self.waiting.partition_point(|event| key(event) < first);
        let mut among = self.waiting.split_off(before).into_iter().peekable();
        for event in self.found.drain(..) {
            while let Some(earlier) = among.next_if(|other| key(other) < key(&event)) {
                self.waiting.push_back(earlier);
            }
            self.waiting.push_back(event);
        }
        self.waiting.extend(among);
    }

    /// Sets the frontier to the least time that a record can have that was not read yet.
    fn settle(&mut self) {
        self.put_in_order();
        if !self.begun {
            self.begun = true;
            // The marked events began before the first look, so their times are unknown. They must not hold back any
            // record: otherwise no record could be handed out before the events end.
            for marked in &mut self.marked {
                marked.until = Instant::now();
            }
        }
        let held_back = self.marked.iter().filter(|marked| marked.holds_back());
        self.frontier = held_back.map(|marked| marked.from).fold(self.unmarked_from, u64::min);
    }

    /// Lets `next` hand out all records that were read. The caller will not call `follow` again.
    pub fn finish(&mut self) {
        self.frontier = u64::MAX;
    }

    /// The number of slots that threads took, but at most the number of slots in the file.
    fn end(&self) -> u64 {
        self.journal.claimed()
    }

    /// Whether there are taken slots that were not read yet.
    fn is_behind(&self) -> bool {
        self.next < self.end()
    }

    /// One look: reads the slots that held no record at the last look, and a portion of the slots taken since.
    fn look(&mut self) -> Result<(), OpenError> {
        // The process goes on writing during the look. So a record that this look does not find is later than all
        // records that were read before the look, but not always later than those read during the look.
        let known = self.latest;
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
            self.unmarked_from = self.unmarked_from.max(known);
        }
    }

    fn find(&mut self, record: RawRecord, slot: u64) {
        let Some(event) = record.decode(slot) else {
            self.impossible += 1;
            return;
        };
        self.latest = self.latest.max(event.time_ns);
        self.found.push(event);
    }

    /// Reads the ring again, if a full journal has one, and takes the records that are new in it. Records that came and
    /// went between two looks are lost, and the journal's header counts them.
    fn look_at_ring(&mut self) -> Result<(), OpenError> {
        let Some((first, count, taken)) = self.journal.ring() else {
            return Ok(());
        };
        if taken == self.ring_taken {
            return Ok(());
        }
        self.ring.resize(count as usize, None);
        let got = self.read(first, count)?;
        let mut under_way = false;
        for place in 0..got {
            let slot = &self.buffer[place as usize * SLOT_SIZE..][..SLOT_SIZE];
            match self.journal.slot(first + place, slot) {
                SlotState::Committed(record) if self.ring[place as usize] != Some(record) => {
                    self.ring[place as usize] = Some(record);
                    self.find(record, first + place);
                }
                SlotState::Committed(_) | SlotState::Unused => {}
                SlotState::UnderWay | SlotState::Damaged => under_way = true,
            }
        }
        // A slot that is being written is read again at the next look.
        if !under_way {
            self.ring_taken = taken;
        }
        Ok(())
    }

    /// The first slot from `first` on that is in no long hole.
    fn past_hole(&self, first: u64) -> u64 {
        let written = self.journal.written_from(HEADER_SIZE as u64 + first * SLOT_SIZE as u64);
        let found = written.map_or(u64::MAX, |written| {
            (written.start.saturating_sub(HEADER_SIZE as u64) / SLOT_SIZE as u64).max(first)
        });
        let before_end = self.end().saturating_sub(LONGEST_RESERVE);
        match found.min(before_end) {
            next if next > first.saturating_add(LONGEST_RESERVE) => next,
            _ => first,
        }
    }

    /// Reads the next portion of slots that were never read.
    fn look_at_new(&mut self) -> Result<(), OpenError> {
        let first = self.past_hole(self.next);
        self.next = first;
        let count = self.end().saturating_sub(first).min(self.portion);
        let got = self.read(first, count)?;
        let ring = self
            .journal
            .ring()
            .map_or(0..0, |(first, count, _)| first..first + count);
        for index in first..first + got {
            // `look_at_ring` reads the slots of the ring.
            if !ring.contains(&index) && !self.take(index, first) {
                self.reserved.push(index);
            }
        }
        let too_many = self.reserved.len().saturating_sub(HELD);
        self.reserved.drain(..too_many);
        self.next += got;
        Ok(())
    }

    /// Reads again the slots that threads held in reserve. Slots that are near each other are read together.
    fn look_at_reserved(&mut self) -> Result<(), OpenError> {
        let reserved = std::mem::take(&mut self.reserved);
        let mut rest = &reserved[..];
        while let Some(&first) = rest.first() {
            let steps = rest
                .windows(2)
                .take_while(|pair| pair[1] - pair[0] <= NEAR && pair[1] - first < self.portion);
            let near = steps.count() + 1;
            let got = self.read(first, rest[near - 1] - first + 1)?;
            for &index in &rest[..near] {
                if index - first >= got || !self.take(index, first) {
                    self.reserved.push(index);
                }
            }
            rest = &rest[near..];
        }
        Ok(())
    }

    /// Reads again the slots whose event was under way.
    fn look_at_marked(&mut self) -> Result<(), OpenError> {
        for marked in std::mem::take(&mut self.marked) {
            let index = marked.slot;
            let was = self.marked.len();
            if self.read(index, 1)? == 0 || !self.take(index, index) {
                self.marked.push(marked);
            } else if let Some(again) = self.marked.get_mut(was) {
                // The slot is still marked. The old entry replaces the new one, because `from` and `until` must be
                // those of the look that first found the slot marked.
                *again = marked;
            }
        }
        Ok(())
    }

    /// Reads `count` slots from slot `first` on into the buffer. Returns the number of slots that the file had.
    fn read(&mut self, first: u64, count: u64) -> Result<u64, OpenError> {
        self.buffer.resize(count as usize * SLOT_SIZE, 0);
        let start = HEADER_SIZE as u64 + first * SLOT_SIZE as u64;
        match self.journal.read(&mut self.buffer, start) {
            Ok(got) => Ok((got / SLOT_SIZE) as u64),
            Err(error) => Err(self.journal.error(Problem::Io(error))),
        }
    }

    /// Examines slot `index` in the buffer, which begins with slot `first`. Adds the slot's record to `found`, or the
    /// slot to `marked`. Returns false if the slot is unused.
    fn take(&mut self, index: u64, first: u64) -> bool {
        let slot = &self.buffer[(index - first) as usize * SLOT_SIZE..][..SLOT_SIZE];
        match self.journal.slot(index, slot) {
            SlotState::Committed(record) => self.find(record, index),
            SlotState::Unused if self.journal.marks_under_way() => return false,
            // The event is under way. In format 1 an unused slot looks the same.
            _ => self.marked.push(Marked {
                slot: index,
                from: self.unmarked_from,
                until: Instant::now() + PATIENCE,
            }),
        }
        // More threads than that do not have calls under way: the slots are damaged.
        self.marked.truncate(HELD);
        true
    }
}

/// Hands out the records that need not wait. After `None`, a call of `follow` can make more records available.
impl Iterator for Follower {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let (time, _) = key(self.waiting.front()?);
        let too_many = self.waiting.len() > self.held;
        if time > self.frontier && !too_many {
            return None;
        }
        let event = self.waiting.pop_front()?;
        self.late += u64::from(key(&event) < self.handed_out);
        self.handed_out = self.handed_out.max(key(&event));
        if self.is_behind() {
            self.unmarked_from = self.unmarked_from.max(time);
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests;
