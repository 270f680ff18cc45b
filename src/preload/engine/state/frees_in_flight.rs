//! Frees in flight: at most one free of an allocation runs at a time.
//!
//! A job that frees one allocation from two threads has a bug, and the driver answers the second free with an error. But
//! the thread that takes the entry out of the ledger must be the one whose free succeeds. Otherwise the thread whose free
//! failed would put the entry back although the memory is gone.

use std::sync::Mutex;
use std::time::Duration;

use super::allocation::Key;
use base::sync::lock;

const RETRY_INTERVAL: Duration = Duration::from_micros(100);

const LISTS: usize = 32;

/// The frees that run, of the keys that belong to this list. A process has few at a time, so a list is searched faster
/// than a table. The lists have cache lines of their own, so that threads do not slow each other down.
#[derive(Default)]
#[repr(align(128))]
struct List(Mutex<Vec<Key>>);

#[derive(Default)]
pub struct FreesInFlight {
    lists: [List; LISTS],
}

/// The free of one allocation; dropping it ends the free.
pub struct FreeInFlight<'a> {
    list: &'a List,
    key: Key,
}

impl FreesInFlight {
    fn list(&self, key: Key) -> &List {
        &self.lists[(key.value().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % LISTS]
    }

    /// Waits until no other thread frees this allocation, then begins.
    pub fn begin(&self, key: Key) -> FreeInFlight<'_> {
        let list = self.list(key);
        loop {
            let mut keys = lock(&list.0);
            if !keys.contains(&key) {
                keys.push(key);
                return FreeInFlight { list, key };
            }
            drop(keys);
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}

impl Drop for FreeInFlight<'_> {
    fn drop(&mut self) {
        let mut keys = lock(&self.list.0);
        if let Some(place) = keys.iter().position(|&key| key == self.key) {
            keys.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn at_most_one_free_of_an_allocation_runs_at_a_time() {
        let (frees, running, most) = (FreesInFlight::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _other = frees.begin(Key::Object(0x1000));
                        let _free = frees.begin(Key::Address(0x1000));
                        most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
    }
}
