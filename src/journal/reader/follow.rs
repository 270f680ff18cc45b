//! The events of a journal that is still being written: each once, in the order they took effect in.
//!
//! A follower keeps its place and looks again: at the slots that were handed out since, and at the open ones, which held
//! no record when it looked last. What it finds waits until nothing earlier can come. How early something can
//! come follows from the way slots are used (`writer::Journal::claim`): a slot is marked as under way before its time is
//! taken, so what was not marked when a look began is later than all that had been read by then. A slot that is marked
//! has its time from between the last look that found it unmarked and the first that found it marked. It holds back
//! what is later than the former until it is committed, most often in less than a microsecond.
//!
//! A call that waits for its device may be under way for long. After `PATIENCE` it holds nothing back any more; its
//! record is handed out when it comes, and `late` tells that it is out of order.
//!
//! A long file is read in portions. At any moment a thread has at most 64 slots in hand, so that of all records read,
//! only the 64 latest for each thread may be later than the first slot that was not looked at yet. The `HELD` latest
//! wait, the others go: that bounds the memory as well.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::error::{OpenError, Problem};
use super::journal::Journal;
use super::records::{commit_word, key, record_in};
use crate::format::{HEADER_SIZE, Record, SLOT_SIZE};

/// Slots read at once.
const PORTION: u64 = 1 << 16;
/// Kept slots that lie no further apart are read at once.
const NEAR: u64 = 64;
/// Events that wait at most: enough for 1024 threads.
const HELD: usize = 1 << 16;
/// How long a call that is under way holds back what began after it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often, and after what time, slots that were found under way are looked at once more before the answer is given.
const AGAIN: u32 = 4;
const MOMENT: Duration = Duration::from_micros(300);

pub struct Follower {
    journal: Journal,
    /// The first slot that was not looked at yet.
    next: u64,
    /// Slots below it that are kept in hand, or were left behind by a thread, in order.
    kept: Vec<u64>,
    /// Those whose event is under way.
    marked: Vec<Marked>,
    /// Events that were read since the others were put in order, and those in order.
    found: Vec<Record>,
    waiting: VecDeque<Record>,
    /// The latest time that was read.
    latest: u64,
    /// What was not marked at the last look is not earlier than this.
    unmarked_from: u64,
    /// Events up to this time may go.
    frontier: u64,
    /// The last event that went.
    gone: (u64, u64),
    late: u64,
    /// Whether everything that was there in the beginning has been looked at.
    begun: bool,
    /// Events that wait at most, and slots read at once.
    held: usize,
    portion: u64,
    buffer: Vec<u8>,
}

struct Marked {
    index: u64,
    /// Its time is not earlier.
    from: u64,
    /// It holds back what is later until then.
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
            kept: Vec::new(),
            marked: Vec::new(),
            found: Vec::new(),
            waiting: VecDeque::new(),
            latest: 0,
            unmarked_from: 0,
            frontier: 0,
            gone: (0, 0),
            late: 0,
            begun: false,
            held,
            portion,
            buffer: Vec::new(),
        }
    }

    /// Begins anew, with the first event.
    pub fn restart(&mut self) {
        self.next = 0;
        self.kept.clear();
        self.marked.clear();
        self.found.clear();
        self.waiting.clear();
        self.latest = 0;
        self.unmarked_from = 0;
        self.frontier = 0;
        self.gone = (0, 0);
        self.late = 0;
        self.begun = false;
    }

    /// With its head as of the last look.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// How much of the journal has been looked at, in bytes, and how much there is.
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

    /// Reads on; `next` then hands out what may go. False if there is more to read: a call reads one portion at most.
    pub fn follow(&mut self) -> Result<bool, OpenError> {
        self.look()?;
        if self.is_behind() {
            return Ok(false);
        }
        // What the first look found may go when a second one has found nothing earlier.
        self.look()?;
        for _ in 0..AGAIN {
            if !self.marked.iter().any(Marked::holds_back) {
                break;
            }
            std::thread::sleep(MOMENT);
            self.look_at_marked()?;
        }
        self.settle();
        Ok(!self.is_behind())
    }

    /// Puts what was found in order, among what waits. Most often all of it is later.
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

    /// What was found may go up to where something earlier may still come.
    fn settle(&mut self) {
        self.put_in_order();
        if !self.begun {
            self.begun = true;
            // Nobody saw these begin, so nothing is known of their times: nothing could go before they end.
            for marked in &mut self.marked {
                marked.until = Instant::now();
            }
        }
        let held_back = self.marked.iter().filter(|marked| marked.holds_back());
        self.frontier = held_back.map(|marked| marked.from).fold(self.unmarked_from, u64::min);
    }

    /// Lets everything go that was read: nothing more comes, or nobody will look again.
    pub fn finish(&mut self) {
        self.frontier = u64::MAX;
    }

    /// Slots that were handed out, as far as the file has them.
    fn end(&self) -> u64 {
        self.journal.claimed()
    }

    fn is_behind(&self) -> bool {
        self.next < self.end()
    }

    /// Looks at what is open and at what has come since the last look.
    fn look(&mut self) -> Result<(), OpenError> {
        // The process goes on all the while: only what was known before is surely earlier than what comes later.
        let known = self.latest;
        self.journal.refresh()?;
        self.look_at_marked()?;
        self.look_at_kept()?;
        self.look_at_new()?;
        self.looked(known);
        Ok(())
    }

    fn looked(&mut self, known: u64) {
        self.put_in_order();
        if !self.is_behind() {
            self.unmarked_from = self.unmarked_from.max(known);
        }
    }

    /// The next portion of what was handed out since.
    fn look_at_new(&mut self) -> Result<(), OpenError> {
        let first = self.next;
        let count = self.end().saturating_sub(first).min(self.portion);
        let got = self.read(first, count)?;
        for index in first..first + got {
            if !self.take(index, first) {
                self.kept.push(index);
            }
        }
        self.next += got;
        Ok(())
    }

    /// Slots in hand may have been used. Those that lie near each other are read at once.
    fn look_at_kept(&mut self) -> Result<(), OpenError> {
        let kept = std::mem::take(&mut self.kept);
        let mut rest = &kept[..];
        while let Some(&first) = rest.first() {
            let steps = rest
                .windows(2)
                .take_while(|pair| pair[1] - pair[0] <= NEAR && pair[1] - first < self.portion);
            let near = steps.count() + 1;
            let got = self.read(first, rest[near - 1] - first + 1)?;
            for &index in &rest[..near] {
                if index - first >= got || !self.take(index, first) {
                    self.kept.push(index);
                }
            }
            rest = &rest[near..];
        }
        Ok(())
    }

    fn look_at_marked(&mut self) -> Result<(), OpenError> {
        for marked in std::mem::take(&mut self.marked) {
            let index = marked.index;
            let was = self.marked.len();
            if self.read(index, 1)? == 0 || !self.take(index, index) {
                self.marked.push(marked);
            } else if let Some(again) = self.marked.get_mut(was) {
                // Still under way, and known as it was when it was first seen.
                *again = marked;
            }
        }
        Ok(())
    }

    /// Reads `count` slots into the buffer; how many the file has.
    fn read(&mut self, first: u64, count: u64) -> Result<u64, OpenError> {
        self.buffer.resize(count as usize * SLOT_SIZE, 0);
        let start = HEADER_SIZE as u64 + first * SLOT_SIZE as u64;
        match self.journal.read(&mut self.buffer, start) {
            Ok(got) => Ok((got / SLOT_SIZE) as u64),
            Err(error) => Err(self.journal.error(Problem::Io(error))),
        }
    }

    /// Looks at one slot of the buffer, which begins with slot `first`. False if nothing is under way in it yet.
    fn take(&mut self, index: u64, first: u64) -> bool {
        let slot = &self.buffer[(index - first) as usize * SLOT_SIZE..][..SLOT_SIZE];
        match commit_word(slot) {
            word if word == index + 1 => {
                let event = record_in(index, slot);
                self.latest = self.latest.max(event.time_ns);
                self.found.push(event);
            }
            0 if self.journal.marks_under_way() => return false,
            // Under way, or, where the file cannot tell (format 1), perhaps.
            _ => self.marked.push(Marked {
                index,
                from: self.unmarked_from,
                until: Instant::now() + PATIENCE,
            }),
        }
        true
    }
}

/// The events that may go by now. After `None` there can be more when the follower has looked again.
impl Iterator for Follower {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let (time, _) = key(self.waiting.front()?);
        let too_many = self.waiting.len() > self.held;
        if time > self.frontier && !too_many {
            return None;
        }
        let event = self.waiting.pop_front()?;
        self.late += u64::from(key(&event) < self.gone);
        self.gone = self.gone.max(key(&event));
        if self.is_behind() {
            self.unmarked_from = self.unmarked_from.max(time);
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests;
