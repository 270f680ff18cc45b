//! Puts records in the order of their times.
//!
//! The slots of a file are nearly in that order. A thread holds up to 64 slots in reserve, and may use them after other
//! threads have used later slots. So a record can be later than records in later slots, but none is from before its slot was
//! taken. Hence a reader of the slots in order has read at most the 64 latest records of each thread too early, and in a
//! full journal those of the ring. So the latest records wait, and only earlier ones are handed out. This also bounds the
//! memory: the records of a file with more disorder are handed out as they come.

use std::collections::VecDeque;

use crate::format::Record;

/// How many records may wait at least, which a processor's cache has room for, and at most: enough for 1024 threads with 64
/// slots each.
pub(super) const LEAST_HELD: usize = 1 << 13;
pub(super) const MOST_HELD: usize = 1 << 16;

pub(super) fn key(record: &Record) -> (u64, u64) {
    (record.time_ns, record.slot)
}

#[derive(Default)]
pub(super) struct Order {
    /// Records that were read later than others that wait, and are not yet among those.
    found: Vec<Record>,
    /// Records that wait to be handed out, in order.
    pub(super) waiting: VecDeque<Record>,
}

impl Order {
    /// Adds a record. Mostly it is later than all that wait. Else it waits from the next call of `sort` on.
    #[inline]
    pub(super) fn add(&mut self, record: Record) {
        match self.waiting.back() {
            Some(last) if key(last) > key(&record) => self.found.push(record),
            _ => self.waiting.push_back(record),
        }
    }

    /// Moves the records that are earlier than others to their places.
    pub(super) fn sort(&mut self) {
        if let Some(first) = self.found.iter().map(key).min() {
            let before = self.waiting.partition_point(|record| key(record) < first);
            self.found.extend(self.waiting.split_off(before));
            // The sort is fast for what is in order in parts.
            self.found.sort_by_key(key);
            self.waiting.extend(self.found.drain(..));
        }
    }
}
