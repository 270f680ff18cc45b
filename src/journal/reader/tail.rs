//! Hands out each record of a journal once, in no particular order, while the process still writes it.
//!
//! Sums do not depend on the order of records. So a tail keeps no records, as `Follower` must: it remembers how far it
//! has read, and which slots below that held no record yet. It keeps no descriptor either, so a program can have a tail
//! for each of thousands of journals. What a hostile file can make it remember is bounded (`MOST_OPEN`, the ring).

use std::io;

use super::journal::{Journal, read_together};
use crate::format::{Record, SLOT_SIZE, SlotState};

/// The most slots that are read at once.
const PORTION: u64 = 1 << 14;
/// The most slots without a record that are read again: enough for 128 threads with 64 slots each in reserve. If there
/// are more, the first ones are given up.
const MOST_OPEN: usize = 1 << 13;

/// What one reading found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes that were read of the file.
    pub bytes: u64,
    /// There is more to read.
    pub behind: bool,
    /// The file has fewer slots than were read before: it was cut.
    pub cut: bool,
}

/// How far a journal was read.
#[derive(Default)]
pub struct Tail {
    /// The first slot that was not read yet.
    next: u64,
    /// Slots below `next` that held no record when they were read last, in order.
    open: Vec<u64>,
    /// The time of the record that each slot of the ring had at the last reading, and how often a slot had been taken.
    ring: Vec<u64>,
    ring_taken: u64,
    given_up: u64,
    impossible: u64,
    /// Slots that were damaged at the last reading.
    damaged: u64,
}

/// What a slot holds.
enum Found {
    Record(Record),
    /// A record that no job can have made.
    Impossible,
    /// A record whose checksum is wrong. While the process runs, it may be writing there.
    Damaged,
    /// Nothing yet.
    Nothing,
}

impl Tail {
    /// Reads the slots that held no record before, and at most one portion of new slots. Calls `each` with each record.
    /// `journal` is the same file at each call, opened or refreshed just before.
    pub fn read(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        each: &mut impl FnMut(Record),
    ) -> io::Result<Reading> {
        let mut reading = Reading {
            cut: journal.slots() < self.next,
            ..Reading::default()
        };
        self.damaged = 0;
        self.read_open(journal, buffer, &mut reading, each)?;
        self.read_new(journal, buffer, &mut reading, each)?;
        self.read_ring(journal, buffer, &mut reading, each)?;
        reading.behind = self.next < journal.claimed();
        Ok(reading)
    }

    /// Slots without a record that are not read again, because there were too many of them.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Records that cannot be true, which were left out. Those of the ring are not counted.
    pub fn impossible(&self) -> u64 {
        self.impossible
    }

    /// Damaged records at the last reading. They were left out. While the process runs, a record that it writes may count.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    fn read_open(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        reading: &mut Reading,
        each: &mut impl FnMut(Record),
    ) -> io::Result<()> {
        let open = std::mem::take(&mut self.open);
        let mut rest = &open[..];
        while let Some(&first) = rest.first() {
            let near = read_together(rest, PORTION);
            let got = read(journal, buffer, first, rest[near - 1] - first + 1, reading)?;
            for &index in &rest[..near] {
                if index - first < got {
                    self.take(index, record(buffer, first, index), each);
                } else {
                    self.open.push(index);
                }
            }
            rest = &rest[near..];
        }
        Ok(())
    }

    fn take(&mut self, index: u64, found: Found, each: &mut impl FnMut(Record)) {
        match found {
            Found::Record(record) => return each(record),
            Found::Impossible => return self.impossible += 1,
            Found::Damaged => self.damaged += 1,
            Found::Nothing => {}
        }
        self.open.push(index);
    }

    fn read_new(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        reading: &mut Reading,
        each: &mut impl FnMut(Record),
    ) -> io::Result<()> {
        let first = journal.past_hole(self.next);
        let count = journal.claimed().saturating_sub(first).min(PORTION);
        let got = read(journal, buffer, first, count, reading)?;
        let ring = journal
            .ring()
            .map_or(0..0, |(first, count, _)| first..first.saturating_add(count));
        for index in (first..first + got).filter(|index| !ring.contains(index)) {
            self.take(index, record(buffer, first, index), each);
        }
        let too_many = self.open.len().saturating_sub(MOST_OPEN);
        self.open.drain(..too_many);
        self.given_up += too_many as u64;
        // Another process may have cut the file meanwhile. Then the slots that it lacks are never read.
        self.next = if got < count { first + got } else { first + count };
        Ok(())
    }

    /// Reads the ring of a full journal, and hands out the records that are new in it. A record that came and went
    /// between two readings is lost, and the journal's header counts it.
    fn read_ring(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        reading: &mut Reading,
        each: &mut impl FnMut(Record),
    ) -> io::Result<()> {
        let Some((first, count, taken)) = journal.ring() else {
            return Ok(());
        };
        if taken == self.ring_taken {
            return Ok(());
        }
        // No record of the ring has the time 0: the file was full before.
        self.ring.resize(count as usize, 0);
        let mut complete = true;
        let mut begin = 0;
        while begin < count {
            let got = read(journal, buffer, first + begin, (count - begin).min(PORTION), reading)?;
            for place in begin..begin + got {
                match record(buffer, first + begin, first + place) {
                    Found::Record(record) if self.ring[place as usize] != record.time_ns => {
                        self.ring[place as usize] = record.time_ns;
                        each(record);
                    }
                    Found::Record(_) | Found::Impossible => {}
                    Found::Damaged => (complete, self.damaged) = (false, self.damaged + 1),
                    Found::Nothing => complete = false,
                }
            }
            if got == 0 {
                break;
            }
            begin += got;
        }
        // A slot without a record may be under way, and is read again.
        if complete {
            self.ring_taken = taken;
        }
        Ok(())
    }
}

/// Reads `count` slots from `first` on. Returns the number of slots that the file had.
fn read(journal: &Journal, buffer: &mut Vec<u8>, first: u64, count: u64, reading: &mut Reading) -> io::Result<u64> {
    let got = journal.read_slots(buffer, first, count)?;
    reading.bytes += got * SLOT_SIZE as u64;
    Ok(got)
}

/// What slot `index` holds in the buffer, which begins with slot `first`.
fn record(buffer: &[u8], first: u64, index: u64) -> Found {
    let slot = &buffer[(index - first) as usize * SLOT_SIZE..][..SLOT_SIZE];
    match SlotState::read(index, slot) {
        SlotState::Committed(record) => record.decode(index).map_or(Found::Impossible, Found::Record),
        SlotState::Damaged => Found::Damaged,
        SlotState::Unused | SlotState::UnderWay => Found::Nothing,
    }
}

#[cfg(test)]
mod tests;
