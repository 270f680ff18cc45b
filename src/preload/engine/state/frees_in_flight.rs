//! Frees in flight: at most one free of an allocation runs at a time.
//!
//! A job that frees one allocation from two threads has a bug, and the driver answers the second free with an error. But
//! the thread that takes the entry out of the ledger must be the one whose free succeeds. Otherwise the thread whose free
//! failed would put the entry back although the memory is gone.

use super::allocation::Key;

/// The frees that run. A process has few at a time, so a list is searched faster than a table.
#[derive(Default)]
pub struct FreesInFlight(Vec<Key>);

impl FreesInFlight {
    /// Begins the free of an allocation; `false` if another thread frees it.
    pub fn begin(&mut self, key: Key) -> bool {
        let is_first = !self.0.contains(&key);
        if is_first {
            self.0.push(key);
        }
        is_first
    }

    pub fn end(&mut self, key: Key) {
        if let Some(place) = self.0.iter().position(|&other| other == key) {
            self.0.swap_remove(place);
        }
    }
}
