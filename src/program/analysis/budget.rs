//! How much memory the live allocations of journals may take in this program, all together. A job that holds millions of
//! blocks is rare, and a journal of another user may say that it does.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a live allocation costs in the ledger, in bytes: itself, its place, and its addresses. Measured with 2,000,000.
const COST: u64 = 112;
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

/// What one ledger has taken.
#[derive(Default)]
pub struct Charge(u64);

impl Charge {
    /// The ledger has had so many live allocations at once.
    #[inline]
    pub fn for_live(&mut self, count: usize) {
        let bytes = count as u64 * COST;
        if bytes > self.0 {
            let more = (bytes - self.0).next_multiple_of(1 << 20);
            TAKEN.fetch_add(more, Relaxed);
            self.0 += more;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Relaxed);
    }
}
