//! Locks that cannot panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A poisoned one is locked all the same, because no code that holds one of our locks can panic half-way.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
