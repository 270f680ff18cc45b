//! Sets of addresses, as ranges.

use std::collections::BTreeMap;

/// The journal contradicts itself: blocks overlap, or bytes lie outside every segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction;

/// Ranges that do not overlap: start -> length. No range is empty or reaches past the last address.
#[derive(Clone, Default)]
pub struct Ranges {
    lengths: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            let before = self.lengths.insert(start, end - start).unwrap_or(0);
            // Who inserts what overlaps, as of a file that lies, asks for no bytes.
            self.bytes = self.bytes.wrapping_add(end - start).wrapping_sub(before);
        }
    }

    /// Inserts a range and joins it with the ranges that it touches.
    pub fn insert_joined(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((&before, length)) = self.lengths.range(..start).next_back()
            && before + length == start
        {
            start = before;
        }
        end += self.remove(end);
        self.insert(start, end);
    }

    /// Adds a range of at least one byte that overlaps no other.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        let end = start.checked_add(length).ok_or(Contradiction)?;
        if self.overlapping(start, end).next().is_some() {
            return Err(Contradiction);
        }
        self.insert(start, end);
        Ok(())
    }

    /// Removes addresses that are covered by ranges, mostly by exactly one.
    #[inline]
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        if self.lengths.get(&start) == Some(&length) {
            self.remove(start);
            return Ok(());
        }
        let end = start.checked_add(length).ok_or(Contradiction)?;
        let mut covered = start;
        for (range, range_end) in self.overlapping(start, end) {
            if range > covered {
                return Err(Contradiction);
            }
            covered = range_end;
        }
        if covered < end {
            return Err(Contradiction);
        }
        self.cut(start, end);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// All ranges, as start and end, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.lengths.iter().map(|(&start, &length)| (start, start + length))
    }

    /// The range that contains `address`.
    pub fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &length) = self.lengths.range(..=address).next_back()?;
        (address - start < length).then_some((start, start + length))
    }

    pub(super) fn begins_at(&self, start: u64) -> bool {
        self.lengths.contains_key(&start)
    }

    /// Removes the range that begins at `start`. Returns its bytes.
    fn remove(&mut self, start: u64) -> u64 {
        let length = self.lengths.remove(&start).unwrap_or(0);
        self.bytes = self.bytes.wrapping_sub(length);
        length
    }

    /// The ranges that share an address with `start..end`, in the order of addresses.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.around(start).map_or(start, |(first, _)| first);
        let there = (start < end).then(|| self.lengths.range(first..end));
        there
            .into_iter()
            .flatten()
            .map(|(&start, &length)| (start, start + length))
    }

    /// Removes the addresses `start..end` from all ranges. Returns how many of these addresses lay in a range.
    pub fn cut(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0;
        let there: Vec<_> = self.overlapping(start, end).collect();
        for (range, range_end) in there {
            self.remove(range);
            self.insert(range, start);
            self.insert(end, range_end);
            removed += range_end.min(end) - range.max(start);
        }
        removed
    }
}
