//! Locks that never panic. The library runs in a job, and the job must go on after a thread panicked with a lock held.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::cancellation::Uncancelled;

/// Locks `mutex`, even if a thread panicked while it held the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As `lock`, together with others that read.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As `lock`, alone.
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// A value for a few instructions that only one thread may run at a time. The lock costs one atomic change, that of `Mutex`
/// two. Who waits for it spins, and after a while sleeps, so it comes a little later than with `Mutex`. A forked child may
/// find it taken for ever.
#[derive(Default)]
pub struct BriefMutex<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by one thread at a time, which has the lock.
unsafe impl<T: Send> Sync for BriefMutex<T> {}

/// The value of a `BriefMutex`, which is locked until this is dropped.
pub struct BriefGuard<'a, T>(&'a BriefMutex<T>);

impl<T> BriefMutex<T> {
    pub const fn new(value: T) -> Self {
        BriefMutex {
            is_taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    #[inline(always)]
    pub fn lock(&self) -> BriefGuard<'_, T> {
        if self.is_taken.swap(true, Acquire) {
            self.wait();
        }
        BriefGuard(self)
    }

    /// `None` if another thread has the value.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<BriefGuard<'_, T>> {
        (!self.is_taken.swap(true, Acquire)).then(|| BriefGuard(self))
    }

    #[cold]
    fn wait(&self) {
        const SPINS: u32 = 100;
        const YIELDS: u32 = 20;
        const SLEEP: Duration = Duration::from_micros(50);
        // A sleep can end a cancelled thread.
        let _uncancelled = Uncancelled::begin();
        let mut tries = 0;
        while self.is_taken.load(Relaxed) || self.is_taken.swap(true, Acquire) {
            match tries {
                0..SPINS => std::hint::spin_loop(),
                SPINS.. if tries < SPINS + YIELDS => std::thread::yield_now(),
                // The holder may have a lower priority than this thread, and get no processor as long as this one runs.
                _ => std::thread::sleep(SLEEP),
            }
            tries += 1;
        }
    }
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard has the lock, so no other thread uses the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed for as long as the result.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for BriefGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_taken.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_takes_a_brief_lock() {
        let count = BriefMutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 80_000);
    }
}
