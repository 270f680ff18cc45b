//! Memory that is on its way back to the next layer.
//!
//! It serves no request of the policy, and the next layer does not have it yet. A request that finds no memory waits for it
//! before it fails.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::sync::lock;

#[derive(Default)]
pub struct UnderWay {
    numbers: Mutex<Numbers>,
    one_ended: Condvar,
}

#[derive(Default)]
struct Numbers {
    begun: u64,
    /// The last one that was waited for in vain. Those up to it are not waited for again.
    given_up: u64,
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

    /// As `wait`, but not longer than this. Returns whether there was anything to wait for, and all of it has ended.
    pub fn wait_at_most(&self, longest: Duration) -> bool {
        let start = Instant::now();
        let mut numbers = lock(&self.numbers);
        let (given_up, last) = (numbers.given_up, numbers.begun);
        let is_open = |numbers: &Numbers| numbers.open.iter().any(|&number| given_up < number && number <= last);
        let waits = is_open(&numbers);
        while is_open(&numbers) {
            let Some(left) = longest.checked_sub(start.elapsed()) else {
                numbers.given_up = numbers.given_up.max(last);
                return false;
            };
            let waited = self.one_ended.wait_timeout(numbers, left);
            (numbers, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        waits
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_in_vain_is_not_waited_for_again() {
        let under_way = UnderWay::default();
        assert!(!under_way.wait_at_most(Duration::from_secs(3600)), "nothing has begun");
        let stuck = under_way.begin();
        assert!(!under_way.wait_at_most(Duration::from_millis(1)));
        assert!(
            !under_way.wait_at_most(Duration::from_secs(3600)),
            "it is known to be stuck"
        );
        let later = under_way.begin();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| under_way.wait_at_most(Duration::from_secs(3600)));
            drop(later);
            // The waiter may have come too late to see it.
            waiter.join().expect("no panic");
        });
        drop(stuck);
        assert!(!under_way.is_under_way());
    }
}
