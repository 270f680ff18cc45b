//! Free room inside the segments that a policy holds: what is left between the blocks, and the largest piece of it.
//!
//! Gaps are kept as they are (merged within a segment, never across two), and their sizes beside them, so that the
//! largest is known at every moment of a replay for the price of a few tree steps an event.

use std::collections::BTreeMap;

#[derive(Default)]
pub struct Space {
    /// Segments, and the free gaps in them: address -> length.
    segments: BTreeMap<u64, u64>,
    gaps: BTreeMap<u64, u64>,
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

    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Whether a segment holds this address.
    pub fn holds(&self, address: u64) -> bool {
        self.segment_of(address).is_some()
    }

    pub fn add_segment(&mut self, start: u64, length: u64) -> Result<(), Impossible> {
        let end = start.checked_add(length).ok_or(Impossible)?;
        if length == 0 || self.holds(start) || self.segments.range(start..end).next().is_some() {
            return Err(Impossible);
        }
        self.segments.insert(start, length);
        self.add_gap(start, length);
        Ok(())
    }

    /// The segment goes; what blocks were in it are forgotten with it. Its length, or an error if there is none.
    pub fn remove_segment(&mut self, start: u64) -> Result<u64, Impossible> {
        let length = self.segments.remove(&start).ok_or(Impossible)?;
        let inside: Vec<u64> = self.gaps.range(start..start + length).map(|(&gap, _)| gap).collect();
        for gap in inside {
            self.remove_gap(gap);
        }
        Ok(length)
    }

    /// A block is cut out of a gap.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Impossible> {
        let end = start.checked_add(length).ok_or(Impossible)?;
        if length == 0 {
            return Ok(());
        }
        let (gap, gap_end) = self
            .gaps
            .range(..=start)
            .next_back()
            .map(|(&gap, &len)| (gap, gap + len))
            .ok_or(Impossible)?;
        if end > gap_end {
            return Err(Impossible);
        }
        self.remove_gap(gap);
        self.add_gap(gap, start - gap);
        self.add_gap(end, gap_end - end);
        Ok(())
    }

    /// A block that was occupied becomes free and joins the gaps beside it.
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Impossible> {
        if length == 0 {
            return Ok(());
        }
        let (segment, segment_end) = self.segment_of(start).ok_or(Impossible)?;
        let end = start
            .checked_add(length)
            .filter(|&end| end <= segment_end)
            .ok_or(Impossible)?;
        let before = self.gaps.range(..end).next_back().map(|(&gap, &len)| (gap, gap + len));
        let after = self.gaps.get(&end).map(|len| end + len);
        let (mut joined_start, mut joined_end) = (start, end);
        match before {
            Some((_, gap_end)) if gap_end > start => return Err(Impossible),
            Some((gap, gap_end)) if gap_end == start && gap >= segment => joined_start = gap,
            _ => {}
        }
        if let Some(gap_end) = after.filter(|_| end < segment_end) {
            joined_end = gap_end;
            self.remove_gap(end);
        }
        if joined_start < start {
            self.remove_gap(joined_start);
        }
        self.add_gap(joined_start, joined_end - joined_start);
        Ok(())
    }

    fn segment_of(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &length) = self.segments.range(..=address).next_back()?;
        (address < start + length).then_some((start, start + length))
    }

    fn add_gap(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.gaps.insert(start, length);
            *self.lengths.entry(length).or_default() += 1;
            self.free += length;
        }
    }

    fn remove_gap(&mut self, start: u64) {
        let Some(length) = self.gaps.remove(&start) else { return };
        self.free -= length;
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gaps_join_inside_a_segment_and_not_across_two() {
        let mut space = Space::default();
        space.add_segment(1000, 100).unwrap();
        space.add_segment(1100, 100).unwrap();
        assert_eq!((space.free(), space.largest()), (200, 100));
        space.occupy(1040, 20).unwrap();
        assert_eq!((space.free(), space.largest()), (180, 100));
        space.occupy(1100, 100).unwrap();
        assert_eq!((space.free(), space.largest()), (80, 40));
        space.release(1040, 20).unwrap();
        assert_eq!((space.free(), space.largest()), (100, 100));
        space.release(1100, 100).unwrap();
        assert_eq!((space.free(), space.largest()), (200, 100));
        assert_eq!(space.remove_segment(1000), Ok(100));
        assert_eq!((space.free(), space.segments()), (100, 1));
    }

    #[test]
    fn the_impossible_is_refused_and_changes_nothing() {
        let mut space = Space::default();
        space.add_segment(1000, 100).unwrap();
        space.occupy(1010, 10).unwrap();
        assert_eq!(space.add_segment(1050, 100), Err(Impossible));
        assert_eq!(space.add_segment(u64::MAX, 100), Err(Impossible));
        assert_eq!(space.occupy(1015, 10), Err(Impossible));
        assert_eq!(space.occupy(2000, 10), Err(Impossible));
        assert_eq!(space.occupy(1090, 20), Err(Impossible));
        assert_eq!(space.release(1000, 15), Err(Impossible));
        assert_eq!(space.release(5, 1), Err(Impossible));
        assert_eq!(space.remove_segment(7), Err(Impossible));
        assert_eq!((space.free(), space.largest()), (90, 80));
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(steps in prop::collection::vec((0u64..60, 1u64..12), 1..80)) {
            let mut space = Space::default();
            space.add_segment(0, 30).unwrap();
            space.add_segment(30, 30).unwrap();
            let mut used = [false; 72];
            let mut blocks = Vec::new();
            for (start, length) in steps {
                if let Some(place) = blocks.iter().position(|&(s, _)| s == start) {
                    let (s, len) = blocks.swap_remove(place);
                    prop_assert_eq!(space.release(s, len), Ok(()));
                    used[s as usize..(s + len) as usize].fill(false);
                } else {
                    let range = start as usize..(start + length) as usize;
                    let inside = (start < 30 && start + length <= 30) || (start >= 30 && start + length <= 60);
                    let fits = inside && used[range.clone()].iter().all(|&u| !u);
                    prop_assert_eq!(space.occupy(start, length).is_ok(), fits);
                    if fits {
                        used[range].fill(true);
                        blocks.push((start, length));
                    }
                }
                let largest = [&used[..30], &used[30..60]].iter()
                    .flat_map(|half| half.split(|&u| u)).map(<[bool]>::len).max().unwrap_or(0);
                prop_assert_eq!(space.free(), used[..60].iter().filter(|&&u| !u).count() as u64);
                prop_assert_eq!(space.largest(), largest as u64);
            }
        }
    }
}
