//! Counts slots of zeros that must have held a record: something wrote zeros over them, or a page of the file was lost.
//!
//! A thread takes 1, `LONE_BATCH` or `BATCH` slots at once and uses them in order (`writer::slots`). So slots that a
//! thread took and never used follow the thread's last slot. How many they can be follows from the slots of that thread
//! right before them. A thread that dies after it took slots, and before it marked the first, leaves all of them. In a
//! journal of one thread that is one slot more than the reserve; else it is a whole batch more. All other slots of zeros
//! below the number of taken slots are *missing*. The number is a lower bound.

use std::collections::HashSet;
use std::ops::Range;

use crate::format::{BATCH, LONE_AFTER, LONE_BATCH};

/// The ids of more threads are not kept. All later threads then count as known.
const MOST_THREADS: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Gaps {
    /// Slots below this number were taken.
    taken: u64,
    /// The slots of the ring, and the first of them that no record was ever put into.
    ring: Range<u64>,
    ring_taken: u64,
    /// The slot behind those that were looked at.
    next: u64,
    /// The unused slots right before `next` that were taken: the first, and how many.
    gap: (u64, u64),
    run: Option<Run>,
    pub(super) threads: HashSet<u32>,
    /// Slots were used by threads that are not known.
    unknown: bool,
    missing: u64,
}

/// Used slots of one thread right behind each other.
struct Run {
    tid: u32,
    start: u64,
    /// The thread has no slot before.
    is_first: bool,
}

impl Gaps {
    /// `taken` slots of the file were taken. `ring`: the first slot of the ring, how many it has, and how often one of
    /// them was taken.
    pub(super) fn new(taken: u64, ring: Option<(u64, u64, u64)>) -> Gaps {
        let (first, count, times) = ring.unwrap_or_default();
        Gaps {
            taken,
            ring: first..first.saturating_add(count),
            ring_taken: first.saturating_add(count.min(times)),
            ..Gaps::default()
        }
    }

    /// The slots up to `end` are unused.
    pub(super) fn unused_until(&mut self, end: u64) {
        let slots = self.next..end.max(self.next);
        self.next = slots.end;
        // The slots before the ring, in it, and behind it.
        let parts = [
            slots.start..slots.end.min(self.ring.start).min(self.taken),
            slots.start.max(self.ring.start)..slots.end.min(self.ring_taken),
            slots.start.max(self.ring.end)..slots.end.min(self.taken),
        ];
        let expected: u64 = parts.into_iter().map(|part| part.end.saturating_sub(part.start)).sum();
        if self.gap.1 == 0 {
            self.gap.0 = slots.start;
        }
        self.gap.1 += expected;
    }

    /// A thread used slot `index`; `None` if the slot does not tell which.
    #[inline]
    pub(super) fn used(&mut self, index: u64, tid: Option<u32>) {
        if self.next < index {
            self.unused_until(index);
        }
        self.next = index + 1;
        if self.gap.1 == 0 && self.run.as_ref().is_some_and(|run| Some(run.tid) == tid) {
            return;
        }
        self.close();
        self.unknown |= tid.is_none();
        self.run = tid.map(|tid| Run {
            tid,
            start: index,
            is_first: self.threads.len() < MOST_THREADS && self.threads.insert(tid),
        });
    }

    /// All slots were looked at; the file has `slots`.
    pub(super) fn end(&mut self, slots: u64) {
        self.unused_until(self.taken.max(self.ring_taken).min(slots));
        self.close();
        self.run = None;
    }

    pub(super) fn missing(&self) -> u64 {
        self.missing
    }

    fn close(&mut self) {
        let (start, unused) = std::mem::take(&mut self.gap);
        if unused > 0 {
            let several = self.threads.len() > 1 || self.unknown;
            let dying = if several { BATCH } else { 1 };
            self.missing += unused.saturating_sub(self.reserve(start).saturating_add(dying));
        }
    }

    /// How many unused slots from `start` on the thread of the slot before can hold in reserve.
    fn reserve(&self, start: u64) -> u64 {
        let Some(run) = self.run.as_ref().filter(|_| !self.ring.contains(&start)) else {
            // A slot whose thread is not known can be of any batch.
            return if self.unknown && start > 0 { BATCH - 1 } else { 0 };
        };
        let length = start - run.start;
        if !run.is_first {
            BATCH.saturating_sub(length).max(LONE_BATCH - 1)
        } else if length < u64::from(LONE_AFTER) {
            0
        } else {
            LONE_BATCH - 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The missing slots of a file whose slots are used by these threads; 0 is an unused slot.
    fn missing(slots: &[u32]) -> u64 {
        let mut gaps = Gaps::new(slots.len() as u64, None);
        for (index, &tid) in (0..).zip(slots).filter(|(_, tid)| **tid > 0) {
            gaps.used(index, Some(tid));
        }
        gaps.end(slots.len() as u64);
        gaps.missing()
    }

    fn slots(parts: &[(u32, usize)]) -> Vec<u32> {
        parts.iter().flat_map(|&(tid, count)| vec![tid; count]).collect()
    }

    #[test]
    fn what_threads_hold_in_reserve_is_not_missing() {
        assert_eq!(missing(&slots(&[(1, 500), (0, 7)])), 0);
        assert_eq!(missing(&slots(&[(1, 20), (2, 1), (1, 3), (0, 61), (2, 64), (1, 9)])), 0);
        // Threads that died before they marked the first slot that they took.
        assert_eq!(missing(&slots(&[(1, 20), (0, 1)])), 0);
        assert_eq!(missing(&slots(&[(1, 500), (0, 8)])), 0);
        assert_eq!(missing(&slots(&[(1, 20), (2, 1), (1, 64), (0, 64), (2, 64)])), 0);
    }

    #[test]
    fn a_lost_page_is_missing() {
        assert_eq!(missing(&slots(&[(1, 128), (0, 64), (1, 50)])), 56);
        assert_eq!(missing(&slots(&[(1, 128), (0, 20)])), 12, "the last page");
        assert_eq!(
            missing(&slots(&[(1, 10), (0, 20)])),
            19,
            "it takes single slots so early"
        );
        assert_eq!(missing(&slots(&[(0, 1000)])), 999);
        let several = [(1, 20), (2, 1), (1, 171), (0, 64), (1, 50)];
        assert_eq!(missing(&slots(&several)), 0, "a thread that died can have left them");
        let several = [(1, 20), (2, 1), (1, 171), (0, 256), (1, 50)];
        assert_eq!(missing(&slots(&several)), 185);
    }

    #[test]
    fn the_ring_has_no_reserve() {
        let missing = |taken: u64| {
            let mut gaps = Gaps::new(100, Some((100, 50, taken)));
            (0..110).chain(130..140).for_each(|index| gaps.used(index, Some(1)));
            gaps.end(150);
            gaps.missing()
        };
        // No record was put into the slots of the gap, as far as the header knows.
        assert_eq!(missing(10), 0);
        assert_eq!(missing(40), 19);
        assert_eq!(missing(1000), 19 + 9);
    }
}
