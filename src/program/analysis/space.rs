//! Free room inside the segments that a policy holds: what is left between the blocks, and the largest piece of it.
//!
//! A segment is given back whole, or, where a policy maps memory itself, in any pieces: parts of one, or several at
//! once. Segments that touch are one range of addresses, and a block or a gap may reach from one into the next. That is
//! right for mapped memory. Two chunks that the driver happened to put side by side are taken for one, too, although no
//! policy joins them: the journal does not say which is which, and a gap across them is then shown larger than it is.
//!
//! Sizes of gaps are kept beside them, so that the largest is known at every moment of a replay for the price of a few
//! tree steps an event.

use std::collections::BTreeMap;

#[derive(Default)]
pub struct Space {
    /// Segments as they were obtained, less what was given back of each: start -> length.
    segments: Ranges,
    /// The same, joined where they touch.
    joined: Ranges,
    /// What is free in them, joined where it touches.
    gaps: Ranges,
    /// How many gaps have each length.
    lengths: BTreeMap<u64, u64>,
    free: u64,
}

/// The journal says something that cannot be: an overlap, or bytes outside of every segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Impossible;

impl Space {
    pub fn free(&self) -> u64 {
        self.free
    }

    pub fn largest(&self) -> u64 {
        self.lengths.last_key_value().map_or(0, |(&length, _)| length)
    }

    /// Pieces that are held; one that was given back in its middle is two.
    pub fn segments(&self) -> usize {
        self.segments.0.len()
    }

    /// Whether a segment holds this address.
    pub fn holds(&self, address: u64) -> bool {
        self.joined.around(address).is_some()
    }

    /// A segment comes, all of it free. How many bytes of it are new: fewer than `length` if some were there already.
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

    /// Any range of memory goes; what blocks were in it are forgotten with it. How many bytes of it were there.
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

    /// A block is cut out of a gap.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Impossible> {
        let end = start.checked_add(length).ok_or(Impossible)?;
        if length == 0 {
            return Ok(());
        }
        let (gap, gap_end) = self.gaps.around(start).ok_or(Impossible)?;
        if end > gap_end {
            return Err(Impossible);
        }
        self.remove_gap(gap);
        self.add_gap(gap, start);
        self.add_gap(end, gap_end);
        Ok(())
    }

    /// A block that was occupied becomes free and joins the gaps beside it.
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Impossible> {
        let end = start.checked_add(length).ok_or(Impossible)?;
        if length == 0 {
            return Ok(());
        }
        let held = self.joined.around(start).is_some_and(|(_, range_end)| end <= range_end);
        if !held || self.gaps.first_overlapping(start, end).is_some() {
            return Err(Impossible);
        }
        self.add_gap(start, end);
        Ok(())
    }

    /// A gap, joined with those it touches; gaps never overlap.
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

/// Ranges that do not overlap: start -> length, none of them empty and none past the last address.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            self.0.insert(start, end - start);
        }
    }

    /// Inserts a range and makes it one with those that touch it.
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

    /// The range that begins below `address`, nearest to it.
    fn last_below(&self, address: u64) -> Option<(u64, u64)> {
        self.0
            .range(..address)
            .next_back()
            .map(|(&start, &length)| (start, start + length))
    }

    fn end_of(&self, start: u64) -> Option<u64> {
        self.0.get(&start).map(|length| start + length)
    }

    /// The range that holds `address`.
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

    /// Takes `start..end` out, parts of ranges too; how many bytes were there.
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
