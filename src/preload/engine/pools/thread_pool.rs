//! The pool that serves the calling thread, remembered by the thread, so that it is known without a lock.

use std::cell::Cell;
use std::ptr;

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
