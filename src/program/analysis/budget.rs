//! How much memory the live allocations of journals may take in this program, all together. A job that holds millions of
//! blocks is rare, and a journal of another user may say that it does.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes. No limit, unless a command sets one.
static MOST: AtomicU64 = AtomicU64::new(u64::MAX);
static TAKEN: AtomicU64 = AtomicU64::new(0);

pub fn most() -> u64 {
    MOST.load(Relaxed)
}

pub fn set(bytes: u64) {
    MOST.store(bytes, Relaxed);
}

pub fn is_exceeded() -> bool {
    TAKEN.load(Relaxed) > most()
}

#[derive(Debug, Default)]
pub struct Charge(u64);

impl Charge {
    /// The table has had so many live allocations at once, which cost so many bytes each.
    #[inline]
    pub fn for_live(&mut self, count: usize, each: u64) {
        let bytes = count as u64 * each;
        if bytes > self.0 {
            // Some more than it is, so that few calls change the sum.
            let more = bytes - self.0 + bytes / 16 + (1 << 12);
            TAKEN.fetch_add(more, Relaxed);
            self.0 += more;
        }
    }
}

impl Clone for Charge {
    fn clone(&self) -> Charge {
        TAKEN.fetch_add(self.0, Relaxed);
        Charge(self.0)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Relaxed);
    }
}
