//! A round: threads take blocks of all kinds and sizes, write and check them, and free them young, old or at random, also
//! those of other threads.

use std::sync::Mutex;

use base::sync::lock;
use fastrand::Rng;

use super::Thread;
use super::device::Block;
use crate::stress::outcome::Fault;

/// Steps of a thread in a round: each takes or frees a block.
const STEPS: u64 = 240;
/// One block in so many is given to whichever thread takes it next.
const HANDED_OVER: u64 = 8;

impl Thread {
    /// Plays the round, and returns the blocks that live on. `shared` has blocks without an owner; the work
    /// of each one is done.
    pub fn play(&mut self, round: u64, shared: &Mutex<Vec<Block>>) -> Result<Vec<Block>, Fault> {
        // The same numbers again for this seed, round and thread.
        let parts = (round << 8 | self.number as u64) << 32;
        self.random = Rng::with_seed(self.site.order.seed ^ parts);
        self.set_current(0, self.context)?;
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..STEPS {
            if lock(&self.site.books).outcome.fault.is_some() {
                break;
            }
            // Threads take more than they free until the worker holds what it may.
            if self.random.u8(..8) < 5 && self.take_one(&mut blocks, shared)? {
                continue;
            }
            let from_others = self.random.u64(..HANDED_OVER) == 0;
            let others = lock(shared).pop_if(|_| from_others);
            let block = match (others, blocks.len()) {
                (Some(block), _) => block,
                (None, 0) => continue,
                (None, count) => blocks.remove(match self.random.u8(..3) {
                    0 => count - 1,
                    1 => 0,
                    _ => self.random.usize(..count),
                }),
            };
            // A block that is not checked may have work in progress when it is freed.
            if self.random.u8(..4) < 3 {
                self.check(&block)?;
            }
            self.give_back(block)?;
        }
        Ok(blocks)
    }

    fn take_one(&mut self, blocks: &mut Vec<Block>, shared: &Mutex<Vec<Block>>) -> Result<bool, Fault> {
        let kinds = &self.site.order.kinds;
        let kind = kinds[self.random.usize(..kinds.len())];
        // Each doubling of the size is equally likely.
        let most = self.site.largest();
        let least = 1 << self.random.u32(..=most.ilog2());
        let bytes = self.random.u64(least..2 * least).min(most);
        let Some(block) = self.take(kind, bytes)? else {
            return Ok(false);
        };
        self.fill(&block)?;
        if self.random.u64(..HANDED_OVER) == 0 {
            self.wait_stream(0, self.stream)?;
            lock(shared).push(block);
        } else {
            blocks.push(block);
        }
        Ok(true)
    }
}
