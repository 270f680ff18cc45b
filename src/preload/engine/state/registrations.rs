//! What the job asked for single blocks: an identity, or that synchronous operations on them end before they return.
//!
//! The driver keeps both for whole allocations. A block is a part of one, so the library keeps them here, until the
//! block is freed. A table entry exists only for blocks that the job asked about.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;

use super::operations;

/// The driver counts its identities up from a small number (cuda.h: they are never used again), so the library's are
/// far above. They are positive as signed numbers too.
const FIRST_ID: u64 = 1 << 62;

#[derive(Clone, Copy, Default)]
struct Registration {
    context: u64,
    id: Option<u64>,
    synchronises: bool,
}

pub struct Registrations {
    /// By first address of the block.
    blocks: DashMap<u64, Registration>,
    /// Entries of the table. While there is none, a free looks no further.
    count: AtomicUsize,
    /// Blocks whose synchronous operations must end before they return.
    synchronising: AtomicUsize,
    given_ids: AtomicU64,
}

impl Default for Registrations {
    fn default() -> Self {
        Registrations {
            blocks: DashMap::with_shard_amount(16),
            count: AtomicUsize::new(0),
            synchronising: AtomicUsize::new(0),
            given_ids: AtomicU64::new(0),
        }
    }
}

impl Registrations {
    fn change<T>(&self, block: u64, context: u64, change: impl FnOnce(&mut Registration) -> T) -> T {
        let mut entry = self.blocks.entry(block).or_insert_with(|| {
            self.count.fetch_add(1, Ordering::Release);
            Registration {
                context,
                ..Registration::default()
            }
        });
        change(&mut entry)
    }

    /// An identity that no block has.
    pub fn new_id(&self) -> u64 {
        FIRST_ID + self.given_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The identity of the block that begins at `block`. No other block of the process ever has it.
    pub fn id(&self, block: u64, context: u64) -> u64 {
        self.change(block, context, |entry| *entry.id.get_or_insert_with(|| self.new_id()))
    }

    /// Sets whether synchronous operations on a block end before they return.
    pub fn set_synchronises(&self, block: u64, context: u64, wanted: bool) {
        self.change(block, context, |entry| {
            let before = std::mem::replace(&mut entry.synchronises, wanted);
            self.count_synchronising(before, wanted);
        });
    }

    pub fn synchronises(&self, block: u64) -> bool {
        self.any_synchronises() && self.blocks.get(&block).is_some_and(|entry| entry.synchronises)
    }

    pub fn any_synchronises(&self) -> bool {
        self.synchronising.load(Ordering::Acquire) > 0
    }

    fn count_synchronising(&self, before: bool, now: bool) {
        match (before, now) {
            (false, true) => {
                self.synchronising.fetch_add(1, Ordering::Release);
                operations::watch();
            }
            (true, false) => {
                self.synchronising.fetch_sub(1, Ordering::Release);
            }
            _ => {}
        }
    }

    fn forgotten(&self, entry: Registration) {
        self.count.fetch_sub(1, Ordering::Release);
        self.count_synchronising(entry.synchronises, false);
    }

    /// The block at `block` is about to be freed.
    #[inline]
    pub fn block_freed(&self, block: u64) {
        if self.count.load(Ordering::Acquire) > 0
            && let Some((_, entry)) = self.blocks.remove(&block)
        {
            self.forgotten(entry);
        }
    }

    /// A context is about to be destroyed, and its blocks with it.
    pub fn context_closes(&self, context: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        self.blocks.retain(|_, entry| {
            let stays = entry.context != context;
            if !stays {
                self.forgotten(*entry);
            }
            stays
        });
    }
}
