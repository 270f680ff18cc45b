//! Reads each slot of a journal until it has a record, while the process still writes the file: for `Tail`.
//!
//! It remembers how far it has read, and which slots below that held no record yet. What a hostile file can make it
//! remember is bounded.

use std::io;

use super::journal::{Journal, read_together};
use crate::format::{Record, SLOT_SIZE, SlotState};

/// What a slot has that is no damage for good.
pub(super) enum Found {
    Record(Record),
    /// A record that is under way, or whose checksum is wrong. While the process runs, it may be writing there.
    UnderWay,
    Unused,
}

/// How far the slots of a journal were read.
pub(super) struct Slots {
    /// The largest number of slots that are read at once.
    portion: u64,
    /// The most slots without a record that are read again. If there are more, the first ones are given up.
    most_open: usize,
    /// The first slot that was not read yet.
    pub(super) next: u64,
    /// Slots below `next` that are to be read again, in order.
    pub(super) open: Vec<u64>,
    /// The time of the record that each slot of the ring had at the last reading, and how often a slot had been taken.
    ring: Vec<u64>,
    ring_taken: u64,
    pub(super) given_up: u64,
    /// Records that no job can have made, which were left out.
    pub(super) impossible: u64,
    /// Those of the last reading of the ring.
    ring_impossible: u64,
    /// Slots whose checksum was wrong, and bytes that were read; the owner sets them to 0.
    pub(super) wrong_checksums: u64,
    pub(super) bytes: u64,
}

impl Slots {
    pub(super) fn new(portion: u64, most_open: usize) -> Slots {
        Slots {
            portion,
            most_open,
            next: 0,
            open: Vec::new(),
            ring: Vec::new(),
            ring_taken: 0,
            given_up: 0,
            impossible: 0,
            ring_impossible: 0,
            wrong_checksums: 0,
            bytes: 0,
        }
    }

    /// Reads the open slots again. `each` gets what a slot has, and says whether the slot stays open. Slots that are near each
    /// other are read together.
    pub(super) fn read_open(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        each: &mut impl FnMut(u64, Found) -> bool,
    ) -> io::Result<()> {
        let open = std::mem::take(&mut self.open);
        let mut rest = &open[..];
        while let Some(&first) = rest.first() {
            let near = read_together(rest, self.portion);
            let got = self.read(journal, buffer, first, rest[near - 1] - first + 1)?;
            for &index in &rest[..near] {
                if index - first >= got || self.found(buffer, first, index).is_some_and(|found| each(index, found)) {
                    self.open.push(index);
                }
            }
            rest = &rest[near..];
        }
        Ok(())
    }

    /// Reads at most one portion of the slots that were never read, for `each` as in `read_open`.
    pub(super) fn read_new(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        each: &mut impl FnMut(u64, Found) -> bool,
    ) -> io::Result<()> {
        let first = journal.past_hole(self.next);
        let count = journal.claimed().saturating_sub(first).min(self.portion);
        let got = self.read(journal, buffer, first, count)?;
        let ring = journal
            .ring()
            .map_or(0..0, |(first, count, _)| first..first.saturating_add(count));
        for index in (first..first + got).filter(|index| !ring.contains(index)) {
            if self.found(buffer, first, index).is_some_and(|found| each(index, found)) {
                self.open.push(index);
            }
        }
        let too_many = self.open.len().saturating_sub(self.most_open);
        self.open.drain(..too_many);
        self.given_up += too_many as u64;
        self.next = first + got;
        Ok(())
    }

    /// Reads the ring again, if a full journal has one, and hands out the records that are new in it. Records that came and
    /// went between two readings are lost, and the journal's header counts them.
    pub(super) fn read_ring(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        each: &mut impl FnMut(Record),
    ) -> io::Result<()> {
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
            let got = self.read(journal, buffer, first + begin, (count - begin).min(self.portion))?;
            for place in begin..begin + got {
                match self.found(buffer, first + begin, first + place) {
                    Some(Found::Record(record)) if self.ring[place as usize] != record.time_ns => {
                        self.ring[place as usize] = record.time_ns;
                        each(record);
                    }
                    Some(Found::Record(_)) | None => {}
                    Some(Found::UnderWay | Found::Unused) => complete = false,
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

    /// Reads `count` slots from `first` on. Returns the number of slots that the file had: another process may have cut it
    /// meanwhile.
    fn read(&mut self, journal: &Journal, buffer: &mut Vec<u8>, first: u64, count: u64) -> io::Result<u64> {
        let got = journal.read_slots(buffer, first, count)?;
        self.bytes += got * SLOT_SIZE as u64;
        Ok(got)
    }

    /// What slot `index` has in the buffer, which begins with slot `first`.
    fn found(&mut self, buffer: &[u8], first: u64, index: u64) -> Option<Found> {
        let slot = &buffer[(index - first) as usize * SLOT_SIZE..][..SLOT_SIZE];
        match SlotState::read(index, slot) {
            SlotState::Committed(record) => {
                let record = record.decode(index);
                self.impossible += u64::from(record.is_none());
                record.map(Found::Record)
            }
            SlotState::Damaged => {
                self.wrong_checksums += 1;
                Some(Found::UnderWay)
            }
            SlotState::UnderWay => Some(Found::UnderWay),
            SlotState::Unused => Some(Found::Unused),
        }
    }
}
