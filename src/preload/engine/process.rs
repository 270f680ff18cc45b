//! The engine of this process, and its limits, once they exist.
//!
//! `CURRENT` points to the cell of the running process. A fork gives the child a new, empty cell: the parent's cell, with
//! its locks, stays in the child's memory and is never touched again.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use once_cell::sync::OnceCell;

use super::Engine;
use config::Config;
use quota::Quota;

struct Cell {
    /// `None` if the library stays out of this process.
    engine: OnceCell<Option<Box<Engine>>>,
    quota: OnceCell<Quota>,
}

impl Cell {
    const fn new() -> Cell {
        Cell {
            engine: OnceCell::new(),
            quota: OnceCell::new(),
        }
    }
}

static FIRST: Cell = Cell::new();
/// The cell of this process; null stands for `FIRST`.
static CURRENT: AtomicPtr<Cell> = AtomicPtr::new(ptr::null_mut());

fn current() -> &'static Cell {
    let cell = CURRENT.load(Ordering::Acquire);
    if cell.is_null() {
        return &FIRST;
    }
    // SAFETY: only `in_forked_child` sets the pointer, to a cell that is never freed.
    unsafe { &*cell }
}

/// The engine. If it does not run yet, `prepare` runs, and one thread calls `start`. `None` if the library stays out of this
/// process.
#[inline]
pub fn engine(prepare: fn(), start: fn() -> Option<Box<Engine>>) -> Option<&'static Engine> {
    let engine = &current().engine;
    match engine.get() {
        Some(started) => started.as_deref(),
        None => {
            prepare();
            engine.get_or_init(start).as_deref()
        }
    }
}

/// The engine, if it runs already.
pub fn running() -> Option<&'static Engine> {
    current().engine.get()?.as_deref()
}

/// The limits and accounts of an engine that starts.
pub fn quota_with(settings: quota::Settings) -> &'static Quota {
    current().quota.get_or_init(|| Quota::new(settings))
}

/// The limits and accounts of this process, for a caller that only asks. It starts no engine.
pub fn quota() -> Option<&'static Quota> {
    if let Some(known) = current().quota.get() {
        return Some(known);
    }
    if is_setuid() {
        return None;
    }
    let settings = Config::read(|name| std::env::var_os(name)).0.quota;
    // Until the engine starts, a program without limits may still set them.
    settings.ask_for_anything().then(|| quota_with(settings))
}

/// Whether this process runs with the rights of another user than the one who started it.
pub fn is_setuid() -> bool {
    // SAFETY: the call reads a value that the kernel set at program start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Gives a forked child a cell of its own.
pub fn in_forked_child() {
    CURRENT.store(Box::leak(Box::new(Cell::new())), Ordering::Release);
}
