//! Puts records in the order of their times.
//!
//! The slots of a file are nearly in that order. A thread holds up to 64 slots in reserve, and may use them after other
//! threads have used later slots. So a record can be later than records in later slots, but none is from before its slot was
//! taken. Hence a reader of the slots in order has read at most the 64 latest records of each thread too early, and in a
//! full journal those of the ring. So the latest records wait, and only earlier ones are handed out. This also bounds the
//! memory: the records of a file with more disorder are handed out as they come.

use std::collections::VecDeque;

use crate::format::Record;

/// How many records may wait: enough for 1024 threads with 64 slots each.
pub(super) const HELD: usize = 1 << 16;

pub(super) fn key(record: &Record) -> (u64, u64) {
    (record.time_ns, record.slot)
}

#[derive(Default)]
pub(super) struct Order {
    /// Records that were read and not yet moved to `waiting`.
    found: Vec<Record>,
    /// Records that wait to be handed out, in order.
    pub(super) waiting: VecDeque<Record>,
}

impl Order {
    /// Adds a record, which waits from the next call of `sort` on.
    pub(super) fn add(&mut self, record: Record) {
        self.found.push(record);
    }

    /// Moves the records that were added to their places. Mostly all of them are later than all that wait.
    pub(super) fn sort(&mut self) {
        // The records are mostly in order already, and the sort is fast on such input.
        self.found.sort_by_key(key);
        let Some(first) = self.found.first().map(key) else {
            return;
        };
        let before = self.waiting.partition_point(|record| key(record) < first);
        let mut among = self.waiting.split_off(before).into_iter().peekable();
        for record in self.found.drain(..) {
            while let Some(earlier) = among.next_if(|other| key(other) < key(&record)) {
                self.waiting.push_back(earlier);
            }
            self.waiting.push_back(record);
        }
        self.waiting.extend(among);
    }
}
