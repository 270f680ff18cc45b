//! The engine of this process, and its limits, once they exist.
//!
//! `CURRENT` points to the cell of the running process. A fork gives the child a new, empty cell: the parent's cell, with
//! its locks, stays in the child's memory and is never touched again.
//!
//! A child of the system call `clone` runs no handler of `pthread_atfork`. The kernel empties the page of `CURRENT` in each child
//! that has memory of its own (MADV_WIPEONFORK, madvise(2), Linux 4.14), so such a child is known by its first call.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::{mem, ptr};

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

/// A page of its own; the largest pages are those of aarch64.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
struct Page(AtomicPtr<Cell>);

static FIRST: Cell = Cell::new();
/// The cell of this process; null before the first call.
static CURRENT: Page = Page(AtomicPtr::new(ptr::null_mut()));
/// Whether this process, or one that it was forked from, made its first call.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// What begins a forked child (`at_fork`).
static AT_FORK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// Whether the kernel empties `CURRENT` in a child.
static IS_WIPED: AtomicBool = AtomicBool::new(false);

fn current() -> &'static Cell {
    let mut cell = CURRENT.0.load(Ordering::Acquire);
    if cell.is_null() {
        cell = begin();
    }
    // SAFETY: the pointer is that of `FIRST`, or of a cell that is never freed.
    unsafe { &*cell }
}

/// The first call of a process, or of a child that the C library did not fork.
#[cold]
fn begin() -> *mut Cell {
    let cell = &CURRENT.0;
    if HAS_BEGUN.load(Ordering::Acquire) {
        let handler = AT_FORK.load(Ordering::Acquire);
        // Another thread may have begun after the caller looked.
        if !cell.load(Ordering::Acquire).is_null() {
            return cell.load(Ordering::Acquire);
        }
        if !handler.is_null() {
            // SAFETY: `at_fork` stored a function of this type.
            unsafe { mem::transmute::<*mut (), unsafe extern "C" fn()>(handler)() };
        }
        if cell.load(Ordering::Acquire).is_null() {
            in_forked_child();
        }
        return cell.load(Ordering::Acquire);
    }
    // SAFETY: the page is ours alone, and the call changes nothing in this process.
    let result = unsafe {
        libc::madvise(
            (&raw const CURRENT).cast_mut().cast(),
            size_of::<Page>(),
            libc::MADV_WIPEONFORK,
        )
    };
    IS_WIPED.store(result == 0, Ordering::Release);
    cell.store((&raw const FIRST).cast_mut(), Ordering::Release);
    HAS_BEGUN.store(true, Ordering::Release);
    cell.load(Ordering::Acquire)
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
    decided()?.as_deref()
}

/// Whether the engine runs, or the library stays out of this process for good.
pub fn is_decided() -> bool {
    decided().is_some()
}

fn decided() -> Option<&'static Option<Box<Engine>>> {
    let cell = CURRENT.0.load(Ordering::Acquire);
    // SAFETY: as in `current`.
    unsafe { cell.as_ref() }?.engine.get()
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

/// Lets a forked child begin anew by this function. Called before an engine or the limits begin to be made: the thread that makes
/// them does not exist in a child, which would wait for ever. For the same reason this waits for no other thread, so two may
/// register the function twice, which does no harm.
pub fn at_fork(in_child: unsafe extern "C" fn()) {
    if AT_FORK.load(Ordering::Acquire).is_null() {
        // SAFETY: the function belongs to this library, which is never unloaded because it was preloaded.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0;
        if !failed {
            AT_FORK.store(in_child as *mut (), Ordering::Release);
        }
    }
}

/// Gives a forked child a cell of its own. Returns whether it has one already.
pub fn in_forked_child() -> bool {
    let cell = &CURRENT.0;
    let has_own = IS_WIPED.load(Ordering::Acquire) && !cell.load(Ordering::Acquire).is_null();
    if !has_own {
        cell.store(Box::leak(Box::new(Cell::new())), Ordering::Release);
    }
    has_own
}
