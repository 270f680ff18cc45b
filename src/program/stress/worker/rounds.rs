//! A round: threads take blocks of all kinds and sizes, write and check them, and free them young, old or at random, also
//! those of other threads.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use base::sync::lock;

use super::cuda::Hand;
use super::device::{Block, Kind, Site};
use super::random::Random;
use crate::stress::outcome::Fault;

/// Steps of a thread in a round: each takes or frees a block.
const STEPS: u64 = 240;
/// One block in so many is given to whichever thread takes it next.
const HANDED_OVER: u64 = 8;

/// What a thread of a round has.
pub struct Part<'a> {
    pub site: &'a Site,
    pub hand: &'a mut Hand,
    pub random: Random,
    pub stream: usize,
}

impl Part<'_> {
    pub fn take(&mut self, kind: Kind, bytes: u64) -> Result<Option<Block>, Fault> {
        self.site.take(self.hand, kind, bytes, self.stream)
    }

    pub fn fill(&mut self, block: &Block) -> Result<(), Fault> {
        self.site.fill(self.hand, block, self.stream)
    }

    pub fn check(&mut self, block: &Block) -> Result<(), Fault> {
        self.site.check(self.hand, block, &mut self.random, self.stream)
    }

    pub fn give_back(&mut self, block: Block) -> Result<(), Fault> {
        self.site.give_back(self.hand, block, self.stream)
    }

    /// Plays the round, and returns the blocks that live on. `shared` has blocks without an owner; the work
    /// of each one is done.
    pub fn play(mut self, shared: &Mutex<Vec<Block>>) -> Result<Vec<Block>, Fault> {
        self.site.cuda.set_current(self.hand, 0, self.site.context)?;
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..STEPS {
            if self.site.is_over.load(Relaxed) {
                break;
            }
            // Threads take more than they free until the worker holds what it may.
            if self.random.below(8) < 5 && self.take_one(&mut blocks, shared)? {
                continue;
            }
            let others = if self.random.below(HANDED_OVER) == 0 {
                lock(shared).pop()
            } else {
                None
            };
            let block = match (others, blocks.len()) {
                (Some(block), _) => block,
                (None, 0) => continue,
                (None, count) => blocks.remove(match self.random.below(3) {
                    0 => count - 1,
                    1 => 0,
                    _ => self.random.below(count as u64) as usize,
                }),
            };
            // A block that is not checked may have work in progress when it is freed.
            if self.random.below(4) < 3 {
                self.check(&block)?;
            }
            self.give_back(block)?;
        }
        Ok(blocks)
    }

    fn take_one(&mut self, blocks: &mut Vec<Block>, shared: &Mutex<Vec<Block>>) -> Result<bool, Fault> {
        let kinds = &self.site.kinds;
        let kind = match self.random.below(2) {
            0 => Kind::Linear,
            _ => kinds[self.random.below(kinds.len() as u64) as usize],
        };
        let bytes = self.random.size(self.site.largest());
        let Some(block) = self.take(kind, bytes)? else {
            return Ok(false);
        };
        self.fill(&block)?;
        if self.random.below(HANDED_OVER) == 0 {
            self.site.cuda.wait_stream(self.hand, 0, self.stream)?;
            lock(shared).push(block);
        } else {
            blocks.push(block);
        }
        Ok(true)
    }
}
