//! Frees in flight: at most one free of an allocation runs at a time.
//!
//! A job that frees one allocation from two threads has a bug, and the driver answers the second free with an error. But
//! the thread that takes the entry out of the ledger must be the one whose free succeeds. Otherwise the thread whose free
//! failed would put the entry back although the memory is gone.

use std::time::Duration;

use dashmap::DashSet;

use super::allocation::Key;

const RETRY_INTERVAL: Duration = Duration::from_micros(100);

#[derive(Default)]
pub struct FreesInFlight {
    keys: DashSet<Key>,
}

/// The free of one allocation; dropping it ends the free.
pub struct FreeInFlight<'a> {
    frees: &'a FreesInFlight,
    key: Key,
}

impl FreesInFlight {
    /// Waits until no other thread frees this allocation, then begins.
    pub fn begin(&self, key: Key) -> FreeInFlight<'_> {
        while !self.keys.insert(key) {
            std::thread::sleep(RETRY_INTERVAL);
        }
        FreeInFlight { frees: self, key }
    }
}

impl Drop for FreeInFlight<'_> {
    fn drop(&mut self) {
        self.frees.keys.remove(&self.key);
    }
}
