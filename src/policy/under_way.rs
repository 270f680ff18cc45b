//! Work that runs without a lock, and whose end others can wait for.
//!
//! Memory on its way back to the next layer is such work: it serves no request of the policy, and the next layer does not
//! have it yet. A request that finds no memory waits for it before it fails. Calls of the driver are such work too, if a
//! capture, a stream or a block must not change before they end.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use base::sync::lock;

#[derive(Default)]
pub struct UnderWay {
    numbers: Mutex<Numbers>,
    one_ended: Condvar,
    /// How many of `numbers` are open, readable without the lock: in a signal handler, whose thread may hold it.
    open: AtomicUsize,
}

#[derive(Default)]
struct Numbers {
    begun: u64,
    /// The last one that was waited for in vain. Those up to it are not waited for again.
    given_up: u64,
    open: BTreeSet<u64>,
}

/// One piece of work; it ends when this is dropped.
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
        self.open.fetch_add(1, SeqCst);
        Ticket {
            under_way: self,
            number,
        }
    }

    /// Waits for no lock.
    pub fn is_under_way(&self) -> bool {
        self.open.load(SeqCst) > 0
    }

    /// Waits until all that has begun has ended.
    pub fn wait(&self) {
        // What was waited for in vain is waited for, too.
        self.wait_after(0, Duration::MAX);
    }

    /// As `wait`, but not longer than this. Returns whether there was anything to wait for, and all of it has ended.
    pub fn wait_at_most(&self, longest: Duration) -> bool {
        let given_up = lock(&self.numbers).given_up;
        self.wait_after(given_up, longest)
    }

    fn wait_after(&self, given_up: u64, longest: Duration) -> bool {
        let mut numbers = lock(&self.numbers);
        let last = numbers.begun;
        let is_open = |numbers: &mut Numbers| {
            let mut later = numbers.open.range((Excluded(given_up), Included(last)));
            later.next().is_some()
        };
        if given_up >= last || !is_open(&mut numbers) {
            return false;
        }
        let waited = self.one_ended.wait_timeout_while(numbers, longest, is_open);
        let (mut numbers, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            numbers.given_up = numbers.given_up.max(last);
        }
        !result.timed_out()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut numbers = lock(&self.under_way.numbers);
        numbers.open.remove(&self.number);
        self.under_way.open.fetch_sub(1, SeqCst);
        drop(numbers);
        self.under_way.one_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn what_was_waited_for_in_vain_is_not_waited_for_again() {
        const LONG: Duration = Duration::from_secs(3600);
        let under_way = UnderWay::default();
        assert!(!under_way.wait_at_most(LONG), "nothing has begun");
        let stuck = under_way.begin();
        assert!(!under_way.wait_at_most(Duration::from_millis(1)));
        assert!(!under_way.wait_at_most(LONG), "it is known to be stuck");
        let waits = || {
            let later = under_way.begin();
            let both = Barrier::new(2);
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    both.wait();
                    under_way.wait_at_most(LONG)
                });
                both.wait();
                std::thread::sleep(Duration::from_millis(10));
                drop(later);
                waiter.join().expect("no panic")
            })
        };
        // The waiter may come too late to see it.
        assert!((0..100).any(|_| waits()), "what begins later is waited for");
        drop(stuck);
        assert!(!under_way.is_under_way());
    }
}
