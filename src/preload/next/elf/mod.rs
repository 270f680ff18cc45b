//! The objects loaded in this process and the functions they export, read from their ELF tables.
//!
//! This library exports `dlsym` and `dlvsym` itself, so it cannot call either by name to find the next layer's functions.
//! While those two functions answer, they may neither allocate nor take a lock of ours. So this module reads the tables
//! that the loader has mapped already, from inside `dl_iterate_phdr`, and nothing outside an object's own segments.
//!
//! `object` reads one object, and `list` goes through the loader's list of objects. Without a lock, `loader` finds the
//! object of an address, and `start` goes through the objects that the program started with.

mod list;
mod loader;
mod object;
mod start;

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

pub use list::{find, generation};
pub use loader::stamp;
pub use object::{Object, Position};
pub use start::{c_library_function, next_function};

/// The object that holds `address`. With glibc 2.35 and later this takes no lock. The lock of the loader's list may be held
/// for ever in a forked child, if another thread of the parent held it at the fork.
pub fn object_of(address: *const c_void) -> Option<Object> {
    let Some(found) = loader::find(address) else {
        return find(|object| object.holds(address as usize).then_some(*object));
    };
    found.filter(|object| object.holds(address as usize))
}

/// The value of `cell`, found at first use. There is no lock: threads that look at the same time find the same value, and a
/// forked child waits for no thread of its parent.
pub fn once(cell: &AtomicPtr<c_void>, find: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let mut value = cell.load(Ordering::Acquire);
    if value.is_null() {
        value = find();
        cell.store(value, Ordering::Release);
    }
    value
}

#[cfg(test)]
mod tests;
