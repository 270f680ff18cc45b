//! Which ranges of addresses are taken by blocks, and whether a new block overlaps another.
//!
//! A block costs a start and a length in one ordered map: a job may hold millions of blocks at once.

use std::collections::BTreeMap;

/// The journal contradicts itself: blocks overlap, or bytes lie outside every segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction;

#[derive(Default)]
pub struct Blocks {
    /// start -> length
    taken: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Blocks {
    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a block begins at this address.
    pub fn knows(&self, start: u64) -> bool {
        self.taken.contains_key(&start)
    }

    /// Adds a block of at least one byte.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        let end = start.checked_add(length).ok_or(Contradiction)?;
        if self.blocks_in(start, end).next().is_some() {
            return Err(Contradiction);
        }
        self.put(start, length);
        Ok(())
    }

    /// Removes a range that is covered by blocks, mostly exactly one.
    #[inline]
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        if self.taken.get(&start) == Some(&length) {
            self.remove(start);
            return Ok(());
        }
        let end = start.checked_add(length).ok_or(Contradiction)?;
        let mut covered = start;
        for (block, block_end) in self.blocks_in(start, end) {
            if block > covered {
                return Err(Contradiction);
            }
            covered = block_end;
        }
        if covered < end {
            return Err(Contradiction);
        }
        self.cut(start, end);
        Ok(())
    }

    /// Removes what blocks have in a range.
    pub fn cut(&mut self, start: u64, end: u64) {
        let blocks: Vec<_> = self.blocks_in(start, end).collect();
        for (block, block_end) in blocks {
            self.remove(block);
            if block < start {
                self.put(block, start - block);
            }
            if block_end > end {
                self.put(end, block_end - end);
            }
        }
    }

    /// All blocks, as start and length, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.taken.iter().map(|(&start, &length)| (start, length))
    }

    fn remove(&mut self, start: u64) {
        self.bytes -= self.taken.remove(&start).unwrap_or(0);
    }

    fn put(&mut self, start: u64, length: u64) {
        self.taken.insert(start, length);
        self.bytes += length;
    }

    /// The blocks that have an address in a range, which is not empty, as start and end, in the order of addresses.
    fn blocks_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let before = self.taken.range(..start).next_back();
        let blocks = before.into_iter().chain(self.taken.range(start..end));
        let block = blocks.map(|(&start, &length)| (start, start + length));
        block.filter(move |&(_, there)| there > start)
    }
}
