//! The free ranges ("gaps") inside the segments that a policy holds, and the largest of them.
//!
//! A policy that maps memory may give back any range: a part of a segment, or several segments at once. Its blocks
//! and gaps may cross from one segment into the next, so segments that touch are treated as one range. Chunks are
//! treated in the same way, because a journal does not distinguish them from mapped segments. A gap across two chunks
//! that happen to touch is therefore shown too large, because no policy joins chunks.
//!
//! The lengths of the gaps are kept in a second tree, so the largest gap is known after every event.

use std::collections::BTreeMap;

#[derive(Default)]
pub struct Space {
    /// Segments as they were obtained, without the pieces that were given back: start -> length.
    segments: Ranges,
    /// The bytes of `segments`, with adjacent segments joined.
    joined: Ranges,
    /// The free ranges inside `joined`, with adjacent free ranges joined.
    gaps: Ranges,
    /// How many gaps have each length.
    lengths: BTreeMap<u64, u64>,
    free: u64,
}

/// The journal contradicts itself: blocks overlap, or bytes lie outside every segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction;

impl Space {
    pub fn free(&self) -> u64 {
        self.free
    }

    pub fn largest(&self) -> u64 {
        self.lengths.last_key_value().map_or(0, |(&length, _)| length)
    }

    /// The number of segments. A segment whose middle was given back counts as two.
    pub fn segments(&self) -> usize {
        self.segments.0.len()
    }

    /// Whether the address lies in a segment.
    pub fn holds(&self, address: u64) -> bool {
        self.joined.around(address).is_some()
    }

    /// Adds a free segment. Bytes that already lie in a segment are left as they are. Returns the number of the other
    /// bytes.
    pub fn add_segment(&mut self, start: u64, length: u64) -> u64 {
        let Some(end) = start.checked_add(length) else { return 0 };
        let mut added = 0;
        let mut from = start;
        let mut there = self.joined.overlapping(start, end);
        there.push((end, end));
        for (there, there_end) in there {
            if from < there {
                self.segments.insert(from, there);
                self.joined.insert_joined(from, there);
                self.add_gap(from, there);
                added += there - from;
            }
            from = there_end.max(from);
        }
        added
    }

    /// Removes a range of addresses, and the blocks in it. Returns how many bytes of the range lay in segments.
    pub fn remove_segment(&mut self, start: u64, length: u64) -> u64 {
        let Some(end) = start.checked_add(length) else { return 0 };
        for (gap, gap_end) in self.gaps.overlapping(start, end) {
            self.remove_gap(gap);
            self.add_gap(gap, gap_end.min(start));
            self.add_gap(gap_end.min(end).max(gap), gap_end);
        }
        self.segments.cut(start, end);
        self.joined.cut(start, end)
    }

    /// Takes a block out of the gap that contains it.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        let end = start.checked_add(length).ok_or(Contradiction)?;
        if length == 0 {
            return Ok(());
        }
        let (gap, gap_end) = self.gaps.around(start).ok_or(Contradiction)?;
        if end > gap_end {
            return Err(Contradiction);
        }
        self.remove_gap(gap);
        self.add_gap(gap, start);
        self.add_gap(end, gap_end);
        Ok(())
    }

    /// Makes an occupied block free and joins it with the gaps beside it.
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        let end = start.checked_add(length).ok_or(Contradiction)?;
        if length == 0 {
            return Ok(());
        }
        let held = self.joined.around(start).is_some_and(|(_, range_end)| end <= range_end);
        if !held || self.gaps.first_overlapping(start, end).is_some() {
            return Err(Contradiction);
        }
        self.add_gap(start, end);
        Ok(())
    }

    /// Adds a gap and joins it with the gaps that it touches.
    fn add_gap(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        if let Some((before, before_end)) = self.gaps.last_below(start)
            && before_end == start
        {
            self.remove_gap(before);
            start = before;
        }
        if let Some(after_end) = self.gaps.end_of(end) {
            self.remove_gap(end);
            end = after_end;
        }
        self.gaps.insert(start, end);
        *self.lengths.entry(end - start).or_default() += 1;
        self.free += end - start;
    }

    fn remove_gap(&mut self, start: u64) {
        let Some(length) = self.gaps.0.remove(&start) else {
            return;
        };
        self.free -= length;
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }
}

/// Ranges that do not overlap: start -> length. No range is empty or reaches past the last address.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            self.0.insert(start, end - start);
        }
    }

    /// Inserts a range and joins it with the ranges that it touches.
    fn insert_joined(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((before, before_end)) = self.last_below(start)
            && before_end == start
        {
            start = before;
        }
        if let Some(length) = self.0.remove(&end) {
            end += length;
        }
        self.insert(start, end);
    }

    /// The last range that begins below `address`.
    fn last_below(&self, address: u64) -> Option<(u64, u64)> {
        self.0
            .range(..address)
            .next_back()
            .map(|(&start, &length)| (start, start + length))
    }

    fn end_of(&self, start: u64) -> Option<u64> {
        self.0.get(&start).map(|length| start + length)
    }

    /// The range that contains `address`.
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &length) = self.0.range(..=address).next_back()?;
        (address - start < length).then_some((start, start + length))
    }

    /// The lowest range that shares an address with `start..end`.
    fn first_overlapping(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        if start >= end {
            return None;
        }
        self.around(start).or_else(|| {
            let (&first, &length) = self.0.range(start..end).next()?;
            Some((first, first + length))
        })
    }

    fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let Some((first, _)) = self.first_overlapping(start, end) else {
            return Vec::new();
        };
        self.0
            .range(first..end)
            .map(|(&start, &length)| (start, start + length))
            .collect()
    }

    /// Removes the addresses `start..end` from all ranges. Returns how many of these addresses lay in a range.
    fn cut(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0;
        for (range, range_end) in self.overlapping(start, end) {
            self.0.remove(&range);
            self.insert(range, start);
            self.insert(end, range_end);
            removed += range_end.min(end) - range.max(start);
        }
        removed
    }
}

#[cfg(test)]
mod tests;
