//! What a dirty block waits for.

use super::request::Region;
use crate::blocks::MAX_LISTS;

/// What must finish before a free block is clean.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WaitFor(u32);

impl WaitFor {
    /// The block is clean.
    pub const NOTHING: Self = WaitFor(0);
    /// All work of the context.
    pub const CONTEXT: Self = WaitFor(1);
    /// The work of the stream that was seen first.
    const FIRST_STREAM: u32 = 2;
    /// Each value has a list in both regions, and the last list number means that a block is in none.
    const LAST_STREAM: u32 = MAX_LISTS / 2 - 2;

    /// How many streams can be told apart.
    pub const MOST_STREAMS: usize = (Self::LAST_STREAM - Self::FIRST_STREAM + 1) as usize;

    /// The work of the stream that was seen as number `index`.
    pub fn stream(index: usize) -> Self {
        WaitFor(Self::FIRST_STREAM + index as u32)
    }

    /// Each value that a dirty block can have if `streams` streams have been seen.
    pub fn each(streams: usize) -> impl Iterator<Item = Self> {
        (Self::CONTEXT.0..Self::FIRST_STREAM + streams as u32).map(WaitFor)
    }

    /// The number of the list of free blocks that wait for this.
    pub fn list(self, region: Region) -> u32 {
        region as u32 + 2 * self.0
    }

    /// What the blocks in this list wait for.
    pub fn of_list(list: u32) -> Self {
        WaitFor(list / 2)
    }

    /// What a block waits for that was joined from two.
    pub fn joined_with(self, other: Self) -> Self {
        match (self, other) {
            (Self::NOTHING, wait) | (wait, Self::NOTHING) => wait,
            _ if self == other => self,
            _ => Self::CONTEXT,
        }
    }
}
