//! The free ranges ("gaps") inside the segments that a policy holds, and the largest of them.
//!
//! A policy that maps memory may give back any range: a part of a segment, or several segments at once. Its blocks
//! and gaps may cross from one segment into the next, so segments that touch are treated as one range. Chunks are
//! treated in the same way, because a journal does not distinguish them from mapped segments. A gap across two chunks
//! that happen to touch is therefore shown too large, because no policy joins chunks.
//!
//! The free bytes are known after every event. The gaps are what blocks leave, and are found if they are asked for.

use std::cell::Cell;

use super::ranges::{Contradiction, Ranges};

#[derive(Default)]
pub struct Space {
    /// Segments as they were obtained, without the pieces that were given back: start -> length.
    segments: Ranges,
    /// The bytes of `segments`, with adjacent segments joined.
    joined: Ranges,
    blocks: Ranges,
    /// No block and no gap crosses from one segment into the next.
    pub(super) apart: bool,
    /// One of `joined`, in which the last address lay; mostly the next one lies there, too.
    last: Cell<(u64, u64)>,
    /// The largest gap, until something changes.
    known_largest: Cell<Option<u64>>,
}

impl Space {
    pub fn free(&self) -> u64 {
        self.joined.bytes() - self.blocks.bytes()
    }

    pub fn largest(&self) -> u64 {
        let find = || self.free_ranges().into_iter().map(|(start, end)| end - start).max();
        let largest = self.known_largest.get().unwrap_or_else(|| find().unwrap_or(0));
        self.known_largest.set(Some(largest));
        largest
    }

    /// The bytes of segments in which no block lies. Only these can be given back whole.
    pub fn unused(&self) -> u64 {
        let is_unused = |&(start, end): &(u64, u64)| self.blocks.overlapping(start, end).next().is_none();
        let unused = self.segments.iter().filter(is_unused);
        unused.map(|(start, end)| end - start).sum()
    }

    /// The number of segments. A segment whose middle was given back counts as two.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The segments as start and end, in the order of addresses. Neighbours are joined if blocks may cross from one into the
    /// next.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        if self.apart { &self.segments } else { &self.joined }.iter()
    }

    /// The gaps as start and end, in the order of addresses.
    pub fn free_ranges(&self) -> Vec<(u64, u64)> {
        gaps(self.ranges(), self.blocks.iter())
    }

    pub fn holds(&self, address: u64) -> bool {
        self.around(address).is_some()
    }

    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (start, end) = self.last.get();
        if !(start..end).contains(&address) {
            self.last.set(self.joined.around(address)?);
        }
        Some(self.last.get())
    }

    /// Adds a free segment. Bytes that already lie in a segment are left as they are. Returns the number of the other
    /// bytes.
    pub fn add_segment(&mut self, start: u64, length: u64) -> u64 {
        let Some(end) = start.checked_add(length) else { return 0 };
        (self.known_largest, self.last) = Default::default();
        let mut added = 0;
        let mut from = start;
        let mut there: Vec<_> = self.joined.overlapping(start, end).collect();
        there.push((end, end));
        for (there, there_end) in there {
            if from < there {
                self.segments.insert(from, there);
                self.joined.insert_joined(from, there);
                added += there - from;
            }
            from = there_end.max(from);
        }
        added
    }

    /// Removes a range of addresses, and the blocks in it. Returns how many bytes of the range lay in segments.
    pub fn remove_segment(&mut self, start: u64, length: u64) -> u64 {
        let Some(end) = start.checked_add(length) else { return 0 };
        (self.known_largest, self.last) = Default::default();
        self.blocks.cut(start, end);
        self.segments.cut(start, end);
        self.joined.cut(start, end)
    }

    /// Takes a block out of the gap that contains it.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        self.known_largest.set(None);
        match self.around(start) {
            _ if length == 0 => Ok(()),
            Some((_, end)) if length <= end - start => self.blocks.occupy(start, length),
            _ => Err(Contradiction),
        }
    }

    #[inline]
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        self.known_largest.set(None);
        match length {
            0 => Ok(()),
            length => self.blocks.release(start, length),
        }
    }
}

/// What blocks (start and end, in the order of addresses) leave of ranges, as start and end. No gap reaches from one range into
/// the next, but a block may.
fn gaps(ranges: impl Iterator<Item = (u64, u64)>, blocks: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut blocks = blocks.into_iter().peekable();
    let (mut gaps, mut from) = (Vec::new(), 0u64);
    for (start, end) in ranges {
        from = from.max(start);
        while let Some((block, block_end)) = blocks.next_if(|&(block, _)| block < end) {
            if block > from {
                gaps.push((from, block));
            }
            from = from.max(block_end);
        }
        if end > from {
            gaps.push((from, end));
        }
    }
    gaps
}

#[cfg(test)]
mod tests;
