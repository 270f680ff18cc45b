//! Sets of addresses, as ranges.

use std::collections::BTreeMap;

/// So many vacant ranges are kept, besides as many as there are others.
const MOST_VACANT: usize = 1 << 10;

/// The journal contradicts itself: blocks overlap, or bytes lie outside every segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction;

/// Ranges that do not overlap. No range is empty or reaches past the last address.
#[derive(Clone, Default)]
pub struct Ranges {
    /// By start: the length, and whether it is there. A range that was released is kept, because mostly the same one comes
    /// again: then one search finds it, and the tree stays as it is.
    known: BTreeMap<u64, (u64, bool)>,
    bytes: u64,
    /// How many were released.
    vacant: usize,
}

impl Ranges {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            let (before, _) = self.known.insert(start, (end - start, true)).unwrap_or_default();
            // Who inserts what overlaps, as of a file that lies, asks for no bytes.
            self.bytes = self.bytes.wrapping_add(end - start).wrapping_sub(before);
        }
    }

    /// Inserts a range and joins it with the ranges that it touches, none of which was released.
    pub fn insert_joined(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((before, before_end)) = self.around(start.saturating_sub(1))
            && before_end == start
        {
            start = before;
        }
        end += self.remove(end);
        self.insert(start, end);
    }

    /// Adds a range of at least one byte that overlaps no other.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        let end = start.checked_add(length).ok_or(Contradiction)?;
        if let Some(known) = self.known.get_mut(&start)
            && *known == (length, false)
        {
            known.1 = true;
            self.vacant -= 1;
            self.bytes = self.bytes.wrapping_add(length);
            return Ok(());
        }
        while let Some((&before, &(length, is_there))) = self.known.range(..end).next_back()
            && before + length > start
        {
            if is_there {
                return Err(Contradiction);
            }
            self.known.remove(&before);
            self.vacant -= 1;
        }
        self.insert(start, end);
        Ok(())
    }

    /// Removes addresses that are covered by ranges, mostly by exactly one.
    #[inline]
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        if let Some(known) = self.known.get_mut(&start)
            && *known == (length, true)
        {
            known.1 = false;
            self.vacant += 1;
            self.bytes = self.bytes.wrapping_sub(length);
            if self.vacant > MOST_VACANT + self.len() {
                self.known.retain(|_, (_, is_there)| *is_there);
                self.vacant = 0;
            }
            return Ok(());
        }
        let end = start.checked_add(length).ok_or(Contradiction)?;
        let there = self.overlapping(start, end);
        let covered: u64 = there.map(|(first, last)| last.min(end) - first.max(start)).sum();
        if covered < length {
            return Err(Contradiction);
        }
        self.cut(start, end);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.known.len() - self.vacant
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ranges, as start and end, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.overlapping(0, u64::MAX)
    }

    /// The range that contains `address`.
    pub fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &(length, is_there)) = self.known.range(..=address).next_back()?;
        (is_there && address - start < length).then_some((start, start + length))
    }

    /// Removes the range that begins at `start`. Returns its bytes.
    fn remove(&mut self, start: u64) -> u64 {
        let (length, _) = self.known.remove(&start).unwrap_or_default();
        self.bytes = self.bytes.wrapping_sub(length);
        length
    }

    /// The ranges that share an address with `start..end`, in the order of addresses.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.around(start).map_or(start, |(first, _)| first);
        let known = (start < end).then(|| self.known.range(first..end));
        let there = known.into_iter().flatten().filter(|(_, (_, is_there))| *is_there);
        there.map(|(&start, (length, _))| (start, start + length))
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
