//! Which slot of the file a record gets.
//!
//! A slot costs one step of a counter that all threads share, and threads that step it in turn wait for its cache line
//! longer than for all the rest. So a thread that finds another one at the counter takes several slots and uses them up
//! without it. A job that writes from one thread takes one at a time, and its file is dense and in order.

use std::cell::Cell;
use std::sync::atomic::Ordering::*;

use super::Journal;
use base::identity;

/// Slots a thread takes at once where others write, too: the counter is then out of the way, and a thread that never
/// writes again leaves at most 4 KiB of the file unused.
const BATCH: u64 = 64;

/// The file cannot grow for now.
pub(super) const NO_SLOT: u64 = u64::MAX;

/// What a thread keeps of the journal it wrote to last. A forked child starts with a copy of its parent's; the journal's
/// id tells that it is none of its own.
#[derive(Clone, Copy)]
struct Hand {
    /// `Journal::id`; 0 belongs to none.
    journal: u32,
    /// Kernel thread id.
    tid: u32,
    /// Slots taken and not used yet.
    next: u64,
    end: u64,
}

thread_local! {
    // Constant and without a destructor: using it never allocates, and works in a thread that is ending.
    static HAND: Cell<Hand> = const { Cell::new(EMPTY_HAND) };
}

const EMPTY_HAND: Hand = Hand {
    journal: 0,
    tid: 0,
    next: 0,
    end: 0,
};

impl Journal {
    /// A slot for this thread alone, mapped, and the thread's id; `NO_SLOT` where the file cannot grow.
    #[inline]
    pub(super) fn take_slot(&self) -> (u64, u32) {
        // A thread whose locals are gone takes one slot at a time and asks for its id each time.
        let taken = HAND.try_with(|kept| self.take_slot_into(kept));
        taken.unwrap_or_else(|_| self.take_slot_into(&Cell::new(EMPTY_HAND)))
    }

    /// As `take_slot`, of a thread that keeps this in hand.
    #[inline]
    fn take_slot_into(&self, kept: &Cell<Hand>) -> (u64, u32) {
        let mut hand = kept.get();
        if hand.journal != self.id {
            hand = self.new_hand();
            kept.set(hand);
        }
        if hand.next < hand.end {
            let next = hand.next + 1;
            kept.set(Hand { next, ..hand });
            return (hand.next, hand.tid);
        }
        (self.take_from_counter(kept, hand), hand.tid)
    }

    fn take_from_counter(&self, kept: &Cell<Hand>, hand: Hand) -> u64 {
        let claimed = self.state().claimed;
        let mut next = claimed.load(Relaxed);
        loop {
            // Look before the step: nothing that is not mapped is ever handed out. While the file is full, lost events
            // must not take slots that a later growth would have to leave empty, nor slots be kept that others lack.
            let mapped = self.mapped.load(Acquire);
            if next >= mapped {
                if !self.reach(next, self.now()) {
                    return NO_SLOT;
                }
                next = claimed.load(Relaxed);
                continue;
            }
            // Others have been here since this thread was.
            let among_others = hand.end != 0 && hand.end != next;
            let count = if among_others && mapped - next >= BATCH {
                BATCH
            } else {
                1
            };
            match claimed.compare_exchange_weak(next, next + count, Relaxed, Relaxed) {
                Ok(_) => {
                    kept.set(Hand {
                        next: next + 1,
                        end: next + count,
                        ..hand
                    });
                    return next;
                }
                Err(now) => next = now,
            }
        }
    }

    #[cold]
    fn new_hand(&self) -> Hand {
        Hand {
            journal: self.id,
            tid: identity::thread_id(),
            ..EMPTY_HAND
        }
    }
}
