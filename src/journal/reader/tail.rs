//! Hands out each record of a journal once, in no particular order, while the process still writes it.
//!
//! Sums do not depend on the order of records. So a tail keeps no records. It keeps no descriptor either, so a program can have a tail for each of thousands of journals.

use std::io;

use super::journal::Journal;
use super::slots::Slots;
use crate::format::{Record, SLOT_SIZE};

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
pub struct Tail(Slots);

impl Tail {
    /// Reads the slots that held no record before, and at most one portion of new slots. Calls `each` with each record.
    /// `journal` is the same file at each call, opened or refreshed just before.
    pub fn read(
        &mut self,
        journal: &Journal,
        buffer: &mut Vec<u8>,
        each: &mut impl FnMut(Record),
    ) -> io::Result<Reading> {
        let slots = &mut self.0;
        let cut = journal.slots() < slots.next;
        (slots.wrong_checksums, slots.bytes) = (0, 0);
        slots.read_open(journal, buffer, each)?;
        slots.read_new(journal, buffer, each)?;
        slots.read_ring(journal, buffer, each)?;
        Ok(Reading {
            bytes: slots.bytes,
            behind: slots.next < journal.claimed(),
            cut,
        })
    }

    /// Bytes of the file up to which new slots were read.
    pub fn position(&self) -> u64 {
        self.0.next * SLOT_SIZE as u64
    }

    /// Slots without a record that are not read again, because there were too many of them.
    pub fn given_up(&self) -> u64 {
        self.0.given_up
    }

    /// Records that cannot be true, which were left out.
    pub fn impossible(&self) -> u64 {
        self.0.impossible
    }

    /// Damaged records at the last reading. They were left out. While the process runs, a record that it writes may count.
    pub fn damaged(&self) -> u64 {
        self.0.wrong_checksums
    }
}

#[cfg(test)]
mod tests;
