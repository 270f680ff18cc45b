//! Which ranges of addresses are taken by blocks, and whether a new block overlaps another.

use super::ranges::Ranges;

/// The journal contradicts itself: blocks overlap, or bytes lie outside every segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction;

#[derive(Default)]
pub struct Blocks {
    taken: Ranges,
    bytes: u64,
}

impl Blocks {
    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a block begins at this address.
    pub fn knows(&self, start: u64) -> bool {
        self.taken.length_from(start).is_some()
    }

    /// Adds a block of at least one byte.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        let end = start.checked_add(length).ok_or(Contradiction)?;
        if self.taken.overlapping(start, end).next().is_some() {
            return Err(Contradiction);
        }
        self.taken.insert(start, end);
        self.bytes += length;
        Ok(())
    }

    /// Removes a range that is covered by blocks, mostly exactly one.
    #[inline]
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        if self.taken.length_from(start) == Some(length) {
            self.taken.remove(start);
            self.bytes -= length;
            return Ok(());
        }
        let end = start.checked_add(length).ok_or(Contradiction)?;
        let mut covered = start;
        for (block, block_end) in self.taken.overlapping(start, end) {
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
        self.bytes -= self.taken.cut(start, end);
    }

    /// All blocks, as start and end, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.taken.iter()
    }
}
