//! One free of an allocation at a time. Two threads that free the same one is a bug of the job's, and the driver answers
//! the second with an error; but the one that takes the entry out of the ledger must be the one that frees, or the entry
//! would come back after the memory is gone.

use std::time::Duration;

use dashmap::DashSet;

use crate::engine::state::ledger::Key;

const PAUSE: Duration = Duration::from_micros(100);

#[derive(Default)]
pub struct Freeing {
    under_way: DashSet<Key>,
}

/// Ends with this value.
pub struct Turn<'a> {
    freeing: &'a Freeing,
    key: Key,
}

impl Freeing {
    /// Waits for a free of the same allocation that is under way.
    pub fn begin(&self, key: Key) -> Turn<'_> {
        while !self.under_way.insert(key) {
            std::thread::sleep(PAUSE);
        }
        Turn { freeing: self, key }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.freeing.under_way.remove(&self.key);
    }
}
