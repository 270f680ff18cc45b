//! The records of a journal that is still being written: each once, in the order of their times.
//!
//! A follower reads the slots that were taken since it looked last. It also reads again the slots that held no record
//! then. A record that it finds waits until no earlier record can come. How early a record can be follows from
//! `writer::Journal::claim`: the writer marks the slot as under way before it takes the time. So:
//!
//! - If a slot was not marked when a look began, its record is later than every record that was read before that look.
//! - If a slot is marked, its record is later than the look that last found the slot unmarked. The slot holds back all
//!   records that are later than that look until it is committed: mostly for less than a microsecond.
//!
//! A call that waits for the device may be under way for long. After `PATIENCE` its slot holds nothing back any more.
//! Its record is handed out when it comes, and `late` counts it as out of order.
//!
//! A long file is read in portions. The order of the slots is not the order of the times. A thread has up to 64 slots in
//! reserve, and may use them after other threads have used later slots. So the next portion can hold records that are
//! earlier than some that were read. At most the 64 latest records that were read of each thread are concerned.
//! Therefore the `HELD` latest records wait, and only the others are handed out. This bounds the memory, too.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::error::{OpenError, Problem};
use super::journal::Journal;
use super::records::{commit_word, key, record_in};
use crate::format::{HEADER_SIZE, Record, SLOT_SIZE};

/// Slots that are read at once.
const PORTION: u64 = 1 << 16;
/// Slots in reserve that are at most this far apart are read at once.
const NEAR: u64 = 64;
/// Records that may wait: enough for 1024 threads.
const HELD: usize = 1 << 16;
/// How long a call that is under way holds back later records.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often slots under way are read again before `follow` returns.
const RETRIES: u32 = 4;
/// The pause before each of these retries.
const RETRY_PAUSE: Duration = Duration::from_micros(300);

/// Reads a journal while its process writes it.
pub struct Follower {
    journal: Journal,
    /// The first slot that was not read yet.
    next: u64,
    /// Slots below `next` that were unused when they were read, in order: a thread holds them in reserve, or has ended.
    reserved: Vec<u64>,
    /// Slots below `next` whose event is under way.
    marked: Vec<Marked>,
    /// Records that were read and are not in `waiting` yet.
    found: Vec<Record>,
    /// Records that wait to be handed out, in order.
    waiting: VecDeque<Record>,
    /// The latest time that was read.
    latest: u64,
    /// A record in a slot that was not marked at the last look has at least this time.
    unmarked_from: u64,
    /// Records up to this time may be handed out.
    frontier: u64,
    /// The key of the record that was handed out last.
    handed_out: (u64, u64),
    late: u64,
    /// Whether the follower has read everything that was there at its first look.
    begun: bool,
    /// Records that may wait (`HELD`, fewer in tests).
    held: usize,
    /// Slots that are read at once (`PORTION`, fewer in tests).
    portion: u64,
    buffer: Vec<u8>,
}

/// A slot whose event is under way.
struct Marked {
    slot: u64,
    /// Its record has at least this time.
    from: u64,
    /// Until then it holds back records later than `from`.
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
            unmarked_from: 0,
            frontier: 0,
            handed_out: (0, 0),
            late: 0,
            begun: false,
            held,
            portion,
            buffer: Vec::new(),
        }
    }

    /// Begins again with the first record.
    pub fn restart(&mut self) {
        self.next = 0;
        self.reserved.clear();
        self.marked.clear();
        self.found.clear();
        self.waiting.clear();
        self.latest = 0;
        self.unmarked_from = 0;
        self.frontier = 0;
        self.handed_out = (0, 0);
        self.late = 0;
        self.begun = false;
    }

    /// The journal, with the header as it was at the last look.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// How many bytes of the journal have been read, and how many there are.
    pub fn progress(&self) -> (u64, u64) {
        let bytes = |slots: u64| slots * SLOT_SIZE as u64;
        (bytes(self.next), bytes(self.end().max(self.next)))
    }

    /// Slots whose event has begun and is not finished.
    pub fn unfinished(&self) -> u64 {
        self.marked.len() as u64
    }

    /// Events that were handed out after later ones.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Reads at most one portion; `next` then hands out the records that may be handed out. False if there is more to
    /// read.
    pub fn follow(&mut self) -> Result<bool, OpenError> {
        self.look()?;
        if self.is_behind() {
            return Ok(false);
        }
        // A second look proves for the records of the first one that no earlier record can come.
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

    /// Merges the records that were found into those that wait. Mostly all of them are later.
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

    /// Sets the frontier: records may be handed out up to the earliest time at which another one may still come.
    fn settle(&mut self) {
        self.put_in_order();
        if !self.begun {
            self.begun = true;
            // These events began before the first look, so their times may be as early as 0. They hold nothing back, or
            // no record could be handed out before they end.
            for marked in &mut self.marked {
                marked.until = Instant::now();
            }
        }
        let held_back = self.marked.iter().filter(|marked| marked.holds_back());
        self.frontier = held_back.map(|marked| marked.from).fold(self.unmarked_from, u64::min);
    }

    /// Lets all records that were read be handed out, because the follower will not look again.
    pub fn finish(&mut self) {
        self.frontier = u64::MAX;
    }

    /// The number of slots that were taken, as far as the file has them.
    fn end(&self) -> u64 {
        self.journal.claimed()
    }

    fn is_behind(&self) -> bool {
        self.next < self.end()
    }

    /// Reads the slots that held no record at the last look, and those that were taken since.
    fn look(&mut self) -> Result<(), OpenError> {
        // The process goes on writing during the look. So a record that comes later is certainly later than the records
        // that were read before the look, and only than those.
        let known = self.latest;
        self.journal.refresh()?;
        self.look_at_marked()?;
        self.look_at_reserved()?;
        self.look_at_new()?;
        self.looked(known);
        Ok(())
    }

    /// Ends a look; before it began, records up to the time `known` had been read.
    fn looked(&mut self, known: u64) {
        self.put_in_order();
        if !self.is_behind() {
            self.unmarked_from = self.unmarked_from.max(known);
        }
    }

    /// Reads the next portion of the slots that were taken since.
    fn look_at_new(&mut self) -> Result<(), OpenError> {
        let first = self.next;
        let count = self.end().saturating_sub(first).min(self.portion);
        let got = self.read(first, count)?;
        for index in first..first + got {
            if !self.take(index, first) {
                self.reserved.push(index);
            }
        }
        self.next += got;
        Ok(())
    }

    /// Reads the slots that threads held in reserve, those that are near each other at once.
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

    /// Reads the slots whose event was under way.
    fn look_at_marked(&mut self) -> Result<(), OpenError> {
        for marked in std::mem::take(&mut self.marked) {
            let index = marked.slot;
            let was = self.marked.len();
            if self.read(index, 1)? == 0 || !self.take(index, index) {
                self.marked.push(marked);
            } else if let Some(again) = self.marked.get_mut(was) {
                // The slot is still marked. The older entry stays, because its `from` and `until` are those of the look
                // that first found the slot marked.
                *again = marked;
            }
        }
        Ok(())
    }

    /// Reads up to `count` slots into the buffer. Returns how many of them the file has.
    fn read(&mut self, first: u64, count: u64) -> Result<u64, OpenError> {
        self.buffer.resize(count as usize * SLOT_SIZE, 0);
        let start = HEADER_SIZE as u64 + first * SLOT_SIZE as u64;
        match self.journal.read(&mut self.buffer, start) {
            Ok(got) => Ok((got / SLOT_SIZE) as u64),
            Err(error) => Err(self.journal.error(Problem::Io(error))),
        }
    }

    /// Takes the record out of slot `index` of the buffer, which begins with slot `first`, or notes that its event is
    /// under way. False if the slot is still unused.
    fn take(&mut self, index: u64, first: u64) -> bool {
        let slot = &self.buffer[(index - first) as usize * SLOT_SIZE..][..SLOT_SIZE];
        match commit_word(slot) {
            word if word == index + 1 => {
                let event = record_in(index, slot);
                self.latest = self.latest.max(event.time_ns);
                self.found.push(event);
            }
            0 if self.journal.marks_under_way() => return false,
            // Under way. In format 1 an unused slot looks the same.
            _ => self.marked.push(Marked {
                slot: index,
                from: self.unmarked_from,
                until: Instant::now() + PATIENCE,
            }),
        }
        true
    }
}

/// The records that may be handed out now. After `None` there may be more once the follower has looked again.
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
