//! Which slot of the file a record gets.
//!
//! All threads share one counter of slots. If several threads step it in turn, they wait for its cache line longer than
//! for everything else that a record needs. So a thread that finds that another thread has stepped the counter takes
//! several slots at once, and uses these without the counter. If only one thread writes, it takes one slot at a time,
//! and the file is dense and in order.

use std::cell::Cell;
use std::sync::atomic::Ordering::*;

use super::mapping::Mapping;
use base::identity;

/// Slots that a thread takes at once while other threads write, too. A thread that never writes again leaves at most
/// 4 KiB of the file unused.
const BATCH: u64 = 64;

/// No slot: the file cannot grow for now.
pub(super) const NO_SLOT: u64 = u64::MAX;

/// The slots that a thread holds in reserve, of the journal it wrote to last. A forked child begins with a copy of its
/// parent's reserve; the journal's id shows that these slots are not the child's.
#[derive(Clone, Copy)]
struct Reserve {
    /// The journal's id; 0 if the reserve belongs to no journal.
    journal: u32,
    /// The kernel's id of the thread.
    tid: u32,
    /// The slots from `next` to before `end` are taken and not used yet.
    next: u64,
    end: u64,
}

thread_local! {
    // Constant and without a destructor: using it never allocates, and works in a thread that is ending.
    static RESERVE: Cell<Reserve> = const { Cell::new(EMPTY) };
}

const EMPTY: Reserve = Reserve {
    journal: 0,
    tid: 0,
    next: 0,
    end: 0,
};

/// A slot of the journal `id` that only this thread writes, mapped, and the thread's id. `NO_SLOT` if the file cannot
/// grow.
#[inline]
pub(super) fn take(mapping: &Mapping, id: u32) -> (u64, u32) {
    // A thread whose thread-locals are gone takes one slot at a time, and asks for its id each time.
    let taken = RESERVE.try_with(|kept| take_with(mapping, id, kept));
    taken.unwrap_or_else(|_| take_with(mapping, id, &Cell::new(EMPTY)))
}

/// As `take`, for a thread with this reserve.
#[inline]
fn take_with(mapping: &Mapping, id: u32, kept: &Cell<Reserve>) -> (u64, u32) {
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
    (take_from_counter(mapping, kept, reserve), reserve.tid)
}

fn take_from_counter(mapping: &Mapping, kept: &Cell<Reserve>, reserve: Reserve) -> u64 {
    // SAFETY: the header is mapped as long as the process lives, and this field is only ever used as an atomic.
    let claimed = unsafe { &(*mapping.header()).claimed };
    let mut next = claimed.load(Relaxed);
    loop {
        // Checked before the step, so that no slot is handed out that is not mapped. While the file is full, lost
        // events must not take slots: a later growth would have to leave these empty. Nor may a thread hold slots in
        // reserve that other threads need.
        let mapped = mapping.mapped();
        if next >= mapped {
            if !mapping.reach(next, mapping.now()) {
                return NO_SLOT;
            }
            next = claimed.load(Relaxed);
            continue;
        }
        // Another thread has stepped the counter since this thread did.
        let others_write = reserve.end != 0 && reserve.end != next;
        let count = if others_write && mapped - next >= BATCH {
            BATCH
        } else {
            1
        };
        match claimed.compare_exchange_weak(next, next + count, Relaxed, Relaxed) {
            Ok(_) => {
                kept.set(Reserve {
                    next: next + 1,
                    end: next + count,
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
