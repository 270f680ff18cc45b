//! Memory that is on its way back to the next layer.
//!
//! It serves no request of the policy, and the next layer does not have it yet. A request that finds no memory waits for it
//! before it fails.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use base::sync::lock;

#[derive(Default)]
pub struct UnderWay {
    numbers: Mutex<Numbers>,
    one_ended: Condvar,
}

#[derive(Default)]
struct Numbers {
    begun: u64,
    open: BTreeSet<u64>,
}

/// One piece of work that gives memory back; it ends when this is dropped.
pub struct Ticket<'a> {
    under_way: &'a UnderWay,
    number: u64,
}

impl UnderWay {
    pub fn begin(&self) -> Ticket<'_> {
        let mut numbers = lock(&self.numbers);
        numbers.begun += 1;
        let number = numbers.begun;
        numbers.open.insert(number);
        Ticket {
            under_way: self,
            number,
        }
    }

    pub fn is_under_way(&self) -> bool {
        !lock(&self.numbers).open.is_empty()
    }

    /// Waits until all that has begun has ended. Returns whether there was anything to wait for.
    pub fn wait(&self) -> bool {
        let mut numbers = lock(&self.numbers);
        let last = numbers.begun;
        let is_open = |numbers: &Numbers| numbers.open.first().is_some_and(|&first| first <= last);
        let waits = is_open(&numbers);
        while is_open(&numbers) {
            numbers = self.one_ended.wait(numbers).unwrap_or_else(PoisonError::into_inner);
        }
        waits
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.under_way.numbers).open.remove(&self.number);
        self.under_way.one_ended.notify_all();
    }
}
