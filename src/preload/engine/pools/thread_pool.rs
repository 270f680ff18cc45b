//! What a thread remembers of pools: the one that serves it, so that it is known without a lock, and how long the thread
//! waited for it. A thread that waits often needs a subpool.

use std::cell::Cell;
use std::ptr;
use std::time::{Duration, Instant};

use super::pool::Pool;
use super::registry::generation;

thread_local! {
    /// The pool that this thread asked last: generation of the registry, current context, pool. The context of a green
    /// context is not the one that the pool is for.
    static LAST: Cell<(u64, u64, *const Pool)> = const { Cell::new((0, 0, ptr::null())) };
}

/// The pool that this thread asks for memory while `context` is current, if it still serves that context.
#[inline]
pub fn remembered(generation: u64, context: u64) -> Option<&'static Pool> {
    let last = LAST.try_with(Cell::get).unwrap_or((0, 0, ptr::null()));
    // SAFETY: a pool is never freed. The pool belongs to this process, because a fork changes the generation.
    ((last.0, last.1) == (generation, context)).then(|| unsafe { &*last.2 })
}

/// From now on this thread asks `pool` for memory, until contexts come or go. `generation` was read before the pool was
/// looked up.
pub fn remember(generation: u64, context: u64, pool: &'static Pool) {
    let _ = LAST.try_with(|last| last.set((generation, context, pool)));
}

/// From now on this thread asks `pool` for memory, in place of the pool that it asked last in this generation.
pub fn replace(generation: u64, pool: &'static Pool) {
    let _ = LAST.try_with(|last| {
        let (remembered, context, _) = last.get();
        if remembered == generation {
            last.set((generation, context, pool));
        }
    });
}

/// `pool`, if this thread asks it for memory.
pub fn asked_last(pool: &Pool) -> Option<&'static Pool> {
    let last = LAST.try_with(|last| last.get().2).ok()?;
    // SAFETY: a pool is never freed.
    ptr::eq(last, pool).then(|| unsafe { &*last })
}

/// Whether `pool` still serves its context; if so, the generation of the registry in which it does.
pub fn generation_served_by(pool: &'static Pool) -> Option<u64> {
    let generation = generation();
    let contexts = pool.registry.contexts();
    let known = contexts.get(&pool.location.context)?;
    ptr::eq(*known, pool).then_some(generation)
}

/// A thread is judged each time that it had to wait this often ...
const WAITS_PER_JUDGEMENT: u32 = 16;
/// ... and needs a subpool if the waits took at least this part of its time.
const TOO_LONG_PART: u32 = 8;

/// How often a thread waited for its pool since when, and for how long in total.
#[derive(Clone, Copy)]
struct Waits {
    count: u32,
    since: Option<Instant>,
    total: Duration,
}

const NO_WAITS: Waits = Waits {
    count: 0,
    since: None,
    total: Duration::ZERO,
};

thread_local! {
    static WAITS: Cell<Waits> = const { Cell::new(NO_WAITS) };
}

/// Notes that the calling thread has waited for its pool since `start`. Returns whether the thread needs a subpool.
pub fn note_wait(start: Instant) -> bool {
    let mut waits = WAITS.try_with(Cell::get).unwrap_or(NO_WAITS);
    let since = *waits.since.get_or_insert(start);
    waits.count += 1;
    waits.total += start.elapsed();
    let is_judged = waits.count == WAITS_PER_JUDGEMENT;
    let waited_too_long = is_judged && waits.total * TOO_LONG_PART >= since.elapsed();
    let _ = WAITS.try_with(|cell| cell.set(if is_judged { NO_WAITS } else { waits }));
    waited_too_long
}
