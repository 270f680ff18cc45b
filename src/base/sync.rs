//! Locks that never panic. The library runs in a job, and the job must go on after a thread panicked with a lock held.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks `mutex`, even if a thread panicked while it held the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock for a few instructions that only one thread may run at a time. It costs one atomic change, `Mutex` costs two.
/// Who waits for it spins, and after a while sleeps. A forked child may find it taken for ever.
#[derive(Default)]
pub struct Brief(AtomicBool);

/// The lock is taken until this is dropped.
pub struct Taken<'a>(&'a AtomicBool);

impl Brief {
    #[inline]
    pub fn take(&self) -> Taken<'_> {
        if self.0.swap(true, Acquire) {
            self.wait();
        }
        Taken(&self.0)
    }

    /// `None` if another thread has the lock.
    #[inline]
    pub fn try_take(&self) -> Option<Taken<'_>> {
        match self.0.swap(true, Acquire) {
            true => None,
            false => Some(Taken(&self.0)),
        }
    }

    #[cold]
    fn wait(&self) {
        const SPINS: u32 = 100;
        const YIELDS: u32 = 20;
        const SLEEP: Duration = Duration::from_micros(50);
        let mut tries = 0;
        while self.0.load(Relaxed) || self.0.swap(true, Acquire) {
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

/// A value that one thread at a time may use, behind a lock as `Brief`. A thread that waits for long sleeps between its
/// looks, so it comes a little later than it would with `Mutex`.
#[derive(Default)]
pub struct BriefMutex<T> {
    lock: Brief,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by one thread at a time, which has the lock.
unsafe impl<T: Send> Sync for BriefMutex<T> {}

/// The value of a `BriefMutex`, which is locked until this is dropped.
pub struct BriefGuard<'a, T> {
    value: &'a UnsafeCell<T>,
    _taken: Taken<'a>,
}

impl<T> BriefMutex<T> {
    pub const fn new(value: T) -> Self {
        BriefMutex {
            lock: Brief(AtomicBool::new(false)),
            value: UnsafeCell::new(value),
        }
    }

    #[inline(always)]
    pub fn lock(&self) -> BriefGuard<'_, T> {
        BriefGuard {
            _taken: self.lock.take(),
            value: &self.value,
        }
    }

    /// `None` if another thread has the value.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<BriefGuard<'_, T>> {
        let taken = self.lock.try_take()?;
        Some(BriefGuard {
            _taken: taken,
            value: &self.value,
        })
    }
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard has the lock, so no other thread uses the value.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed for as long as the result.
        unsafe { &mut *self.value.get() }
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn one_thread_at_a_time_takes_a_brief_lock() {
        let (lock, count) = (Brief::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let _taken = lock.take();
                        count.store(count.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 80_000);
    }
}
