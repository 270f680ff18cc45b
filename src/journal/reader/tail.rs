//! Hands out each record of a journal once, in no particular order, while the process still writes it.
//!
//! Sums do not depend on the order of records. So a tail keeps no records, but only how far it has read, and which
//! slots below that held no record yet. What a hostile file can make it remember is bounded. It keeps no descriptor
//! either, so a program can have a tail for each of thousands of journals.

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

/// How far the slots of a journal were read.
#[derive(Default)]
pub struct Tail {
    /// The first slot that was not read yet.
    next: u64,
    /// Slots below `next` that are to be read again, in order.
    open: Vec<u64>,
    /// The time of the record that each slot of the ring had at the last reading, and how often a slot had been taken.
    ring: Vec<u64>,
    ring_taken: u64,
    /// Slots without a record that are not read again, because there were too many of them.
    pub given_up: u64,
    /// Records that cannot be true, which were left out.
    pub impossible: u64,
    /// Those of the last reading of the ring.
    ring_impossible: u64,
    /// Damaged records at the last reading, which were left out. While the process runs, a record that it writes may
    /// count.
    pub damaged: u64,
    /// Bytes that the last reading has read.
    read_bytes: u64,
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
        let cut = journal.slots() < self.next;
        (self.damaged, self.read_bytes) = (0, 0);
        self.read_open(journal, buffer, each)?;
        self.read_new(journal, buffer, each)?;
        self.read_ring(journal, buffer, each)?;
        Ok(Reading {
            bytes: self.read_bytes,
            behind: self.next < journal.claimed(),
            cut,
        })
    }

    /// Bytes of the file up to which new slots were read.
    pub fn position(&self) -> u64 {
        self.next * SLOT_SIZE as u64
    }

    /// Reads the open slots again. `each` gets the records. Slots that are near each other are read together.
    fn read_open(&mut self, journal: &Journal, buffer: &mut Vec<u8>, each: &mut impl FnMut(Record)) -> io::Result<()> {
        let open = std::mem::take(&mut self.open);
        let mut rest = &open[..];
        while let Some(&first) = rest.first() {
            let near = read_together(rest, PORTION);
            let got = self.slots(journal, buffer, first, rest[near - 1] - first + 1)?;
            for &index in &rest[..near] {
                if index - first >= got || self.take(buffer, first, index, each) {
                    self.open.push(index);
                }
            }
            rest = &rest[near..];
        }
        Ok(())
    }

    /// Reads at most one portion of the slots that were never read, for `each` as in `read_open`.
    fn read_new(&mut self, journal: &Journal, buffer: &mut Vec<u8>, each: &mut impl FnMut(Record)) -> io::Result<()> {
        let first = journal.past_hole(self.next);
        let count = journal.claimed().saturating_sub(first).min(PORTION);
        let got = self.slots(journal, buffer, first, count)?;
        let ring = journal
            .ring()
            .map_or(0..0, |(first, count, _)| first..first.saturating_add(count));
        for index in (first..first + got).filter(|index| !ring.contains(index)) {
            if self.take(buffer, first, index, each) {
                self.open.push(index);
            }
        }
        let too_many = self.open.len().saturating_sub(MOST_OPEN);
        self.open.drain(..too_many);
        self.given_up += too_many as u64;
        self.next = first + got;
        Ok(())
    }

    /// Reads the ring again, if a full journal has one, and hands out the records that are new in it. Records that came
    /// and went between two readings are lost, and the journal's header counts them.
    fn read_ring(&mut self, journal: &Journal, buffer: &mut Vec<u8>, each: &mut impl FnMut(Record)) -> io::Result<()> {
        let Some((first, count, taken)) = journal.ring().filter(|&(.., taken)| taken != self.ring_taken) else {
            return Ok(());
        };
        // No record of the ring has the time 0: the file was full before.
        self.ring.resize(count as usize, 0);
        // What the last reading of the ring counted is counted again.
        self.impossible -= self.ring_impossible;
        let before = self.impossible;
        let mut complete = true;
        let mut begin = 0;
        while begin < count {
            let got = self.slots(journal, buffer, first + begin, (count - begin).min(PORTION))?;
            for place in begin..begin + got {
                let mut found = None;
                let mut find = |record| found = Some(record);
                complete &= !self.take(buffer, first + begin, first + place, &mut find);
                if let Some(record) = found.filter(|record| self.ring[place as usize] != record.time_ns) {
                    self.ring[place as usize] = record.time_ns;
                    each(record);
                }
            }
            if got == 0 {
                break;
            }
            begin += got;
        }
        self.ring_impossible = self.impossible - before;
        // A slot without a record may be under way, and is read again.
        if complete {
            self.ring_taken = taken;
        }
        Ok(())
    }

    /// Reads `count` slots from `first` on. Returns the number of slots that the file had: another process may have cut
    /// it meanwhile.
    fn slots(&mut self, journal: &Journal, buffer: &mut Vec<u8>, first: u64, count: u64) -> io::Result<u64> {
        let got = journal.read_slots(buffer, first, count)?;
        self.read_bytes += got * SLOT_SIZE as u64;
        Ok(got)
    }

    /// Hands out the record of slot `index` in the buffer, which begins with slot `first`. Returns whether there is
    /// none yet.
    fn take(&mut self, buffer: &[u8], first: u64, index: u64, each: &mut impl FnMut(Record)) -> bool {
        let slot = &buffer[(index - first) as usize * SLOT_SIZE..][..SLOT_SIZE];
        let state = SlotState::read(index, slot);
        // While the process runs, it may be writing where the checksum is wrong.
        self.damaged += u64::from(matches!(state, SlotState::Damaged));
        let SlotState::Committed(record) = state else {
            return true;
        };
        match record.decode(index) {
            Some(record) => each(record),
            None => self.impossible += 1,
        }
        false
    }
}

#[cfg(test)]
mod tests;
