//! Random mixes: threads take blocks of all kinds and sizes, write and check them, and free them young, old or at random,
//! also those of other threads.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use base::sync::lock;

use super::cuda::Hand;
use super::kind::Kind;
use super::memory::Block;
use super::random::Random;
use super::site::Site;
use crate::stress::fault::Fault;

/// Steps of a thread in a round: each takes or frees a block.
const STEPS: u64 = 240;
/// One block in so many is given to whichever thread takes it next.
const HANDED_OVER: u64 = 8;

/// What a thread of a round has.
pub struct Part<'a> {
    pub site: &'a Site,
    pub random: Random,
    pub stream: usize,
    /// Blocks without an owner. The work of each one is done.
    pub shared: &'a Mutex<Vec<Block>>,
}

impl Part<'_> {
    /// Plays a round, and leaves the blocks that live on.
    pub fn play(mut self, hand: &mut Hand) -> Result<Vec<Block>, Fault> {
        self.site.cuda.set_current(hand, 0, self.site.context)?;
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..STEPS {
            if self.site.is_over.load(Relaxed) {
                break;
            }
            // Threads take more than they free until the worker holds what it may.
            let taken = match self.random.below(8) < 5 {
                true => self.take(hand, &mut blocks)?,
                false => false,
            };
            if !taken {
                self.free_one(hand, &mut blocks)?;
            }
        }
        Ok(blocks)
    }

    fn take(&mut self, hand: &mut Hand, blocks: &mut Vec<Block>) -> Result<bool, Fault> {
        let Part { site, stream, .. } = *self;
        let kind = match self.random.below(2) {
            0 => Kind::Linear,
            _ => site.kinds[self.random.below(site.kinds.len() as u64) as usize],
        };
        let bytes = self.random.size(site.largest());
        let Some(block) = site.take(hand, kind, bytes, site.new_word(), stream)? else {
            return Ok(false);
        };
        site.fill(hand, &block, 0, stream)?;
        if self.random.one_in(HANDED_OVER) {
            site.cuda.wait_stream(hand, 0, stream)?;
            lock(self.shared).push(block);
        } else {
            blocks.push(block);
        }
        Ok(true)
    }

    fn free_one(&mut self, hand: &mut Hand, blocks: &mut Vec<Block>) -> Result<(), Fault> {
        let others = match self.random.one_in(HANDED_OVER) {
            true => lock(self.shared).pop(),
            false => None,
        };
        let block = match (others, blocks.len()) {
            (Some(block), _) => block,
            (None, 0) => return Ok(()),
            (None, count) => blocks.remove(match self.random.below(3) {
                0 => count - 1,
                1 => 0,
                _ => self.random.below(count as u64) as usize,
            }),
        };
        // A block that is not checked may have work in progress when it is freed.
        if self.random.below(4) < 3 {
            self.site.check(hand, &block, &mut self.random, self.stream)?;
        }
        self.site.give_back(hand, block, self.stream)
    }
}
