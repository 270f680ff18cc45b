//! Chooses the slot of the file that a record gets.
//!
//! All threads share one counter of slots. If several threads increase the counter in turn, each waits longer for the
//! counter's cache line than for all other steps of a record. So if a thread finds that another thread has increased
//! the counter meanwhile, it takes several slots at once and later uses them without the counter. A thread that writes
//! alone for a while takes a few at once, because the change of the counter costs it a tenth of a record. Others take one
//! slot at a time. If only one thread writes, the file is in order, and has unused slots at its end alone.

use std::cell::Cell;

// The model of the counter (`models`) has other atomics here.
use super::atomic::Ordering::*;
use super::mapping::Mapping;
use crate::format::{BATCH, LONE_AFTER, LONE_BATCH};
use base::identity;

/// Stands for no slot: the file cannot grow for now.
pub(super) const NO_SLOT: u64 = u64::MAX;

/// The slots that a thread holds in reserve, in the journal that it wrote to last. A forked child begins with a copy of
/// its parent's reserve. The id shows that the copy belongs to another journal than the child's.
#[derive(Clone, Copy)]
pub(super) struct Reserve {
    /// The journal's id; 0 if the reserve belongs to no journal.
    journal: u32,
    /// The kernel's id of the thread.
    tid: u32,
    /// The slots from `next` on, up to but without `end`, are in reserve.
    next: u64,
    end: u64,
    /// How often in a row this thread took slots and no other thread had taken any since.
    alone: u32,
}

thread_local! {
    // The variable has a constant start value and no destructor. So its use never allocates, and works in a thread that
    // is ending.
    static RESERVE: Cell<Reserve> = const { Cell::new(EMPTY) };
}

pub(super) const EMPTY: Reserve = Reserve {
    journal: 0,
    tid: 0,
    next: 0,
    end: 0,
    alone: 0,
};

/// Takes a mapped slot of the journal `id`, which only this thread may write. Returns the slot, or `NO_SLOT` if the
/// file cannot grow, and the thread's id.
#[inline(always)]
pub(super) fn take(mapping: &Mapping, id: u32) -> (u64, u32) {
    // If the thread-local variables of the thread are gone, it takes one slot at a time and asks for its id each time.
    let taken = RESERVE.try_with(|kept| take_with(mapping, id, kept));
    taken.unwrap_or_else(|_| take_with(mapping, id, &Cell::new(EMPTY)))
}

/// As `take`, with the thread's reserve in `kept`.
#[inline(always)]
pub(super) fn take_with(mapping: &Mapping, id: u32, kept: &Cell<Reserve>) -> (u64, u32) {
    let mut reserve = kept.get();
    if reserve.journal != id {
        reserve = new_reserve(id);
        kept.set(reserve);
    }
    if reserve.next < reserve.end {
        let next = reserve.next + 1;
        kept.set(Reserve { next, ..reserve });
        return (reserve.next, reserve.tid);
    }
    (take_from_counter(mapping, kept, reserve, true), reserve.tid)
}

/// As `take`, for a record that may come from a signal handler: a slot that is mapped already, or `NO_SLOT`. The
/// interrupted thread may be growing the file, so the file is not grown, and the thread's reserve is left alone.
pub(super) fn take_mapped(mapping: &Mapping) -> (u64, u32) {
    let index = take_from_counter(mapping, &Cell::new(EMPTY), EMPTY, false);
    (index, identity::thread_id())
}

/// Takes slots from the counter, puts all but the first into the reserve, and returns the first. If no slot is mapped, the
/// file grows if it `may_grow`.
#[inline(never)]
fn take_from_counter(mapping: &Mapping, kept: &Cell<Reserve>, reserve: Reserve, may_grow: bool) -> u64 {
    // SAFETY: the header is mapped as long as the process lives, and this field is only ever used as an atomic.
    let claimed = unsafe { &(*mapping.header()).claimed };
    let mut next = claimed.load(Relaxed);
    loop {
        // This check comes before the counter is increased. So every slot that is taken is mapped. A lost event must
        // not take a slot: if the file grows later, the slot would stay empty.
        let mapped = mapping.mapped();
        if next >= mapped {
            if !may_grow || !mapping.reach(next, mapping.now()) {
                return NO_SLOT;
            }
            next = claimed.load(Relaxed);
            continue;
        }
        // Whether another thread has increased the counter since this thread did.
        let others_write = reserve.end != 0 && reserve.end != next;
        let count = match mapped - next {
            BATCH.. if others_write => BATCH,
            BATCH.. if reserve.alone >= LONE_AFTER => LONE_BATCH,
            _ => 1,
        };
        match claimed.compare_exchange_weak(next, next + count, Relaxed, Relaxed) {
            Ok(_) => {
                kept.set(Reserve {
                    next: next + 1,
                    end: next + count,
                    alone: if others_write {
                        0
                    } else {
                        reserve.alone.saturating_add(1)
                    },
                    ..reserve
                });
                return next;
            }
            Err(now) => next = now,
        }
    }
}

#[cold]
fn new_reserve(id: u32) -> Reserve {
    Reserve {
        journal: id,
        tid: identity::thread_id(),
        ..EMPTY
    }
}
