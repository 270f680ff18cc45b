//! Sets of addresses, as ranges.

use std::collections::BTreeMap;

/// Ranges that do not overlap: start -> length. No range is empty or reaches past the last address.
#[derive(Clone, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            self.0.insert(start, end - start);
        }
    }

    /// Inserts a range and joins it with the ranges that it touches.
    pub fn insert_joined(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((before, length)) = self.0.range(..start).next_back()
            && before + length == start
        {
            start = *before;
        }
        if let Some(length) = self.0.remove(&end) {
            end += length;
        }
        self.insert(start, end);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All ranges, as start and end, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(&start, &length)| (start, start + length))
    }

    /// The range that contains `address`.
    pub fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &length) = self.0.range(..=address).next_back()?;
        (address - start < length).then_some((start, start + length))
    }

    /// The length of the range that begins at `start`.
    pub(super) fn length_from(&self, start: u64) -> Option<u64> {
        self.0.get(&start).copied()
    }

    /// Removes the range that begins at `start`.
    pub(super) fn remove(&mut self, start: u64) {
        self.0.remove(&start);
    }

    /// The ranges that share an address with `start..end`, in the order of addresses.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.around(start).map_or(start, |(first, _)| first);
        let there = (start < end).then(|| self.0.range(first..end));
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
            self.0.remove(&range);
            self.insert(range, start);
            self.insert(end, range_end);
            removed += range_end.min(end) - range.max(start);
        }
        removed
    }
}
