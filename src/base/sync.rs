//! Locks that never panic. The library runs in a job, and the job must go on after a thread panicked with a lock held.

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
