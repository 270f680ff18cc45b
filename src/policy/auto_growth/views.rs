//! Which granules are mapped more than once, and where.
//!
//! A *view* is one place where a granule is mapped. This file keeps the lists; `aliasing` maps, unmaps and moves bytes.

use std::collections::HashMap;

/// A place where a granule is mapped, or can be: a segment, and the number of the granule in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub segment: u32,
    pub granule: u32,
}

#[derive(Default)]
pub struct Views {
    /// Every view of each granule that is mapped more than once, by handle.
    by_handle: HashMap<u64, Vec<View>>,
    /// Views in which freed memory has become clean since the last `take_freed`.
    freed: Vec<View>,
    /// A bit for each granule of each segment: whether a free there is to be noted in `freed`. Every free looks here.
    watched: Vec<Vec<u64>>,
    /// Views that hold no bytes any more, but could not be unmapped.
    stale: Vec<View>,
    /// Whether the next layer has refused to map a granule twice.
    pub refused: bool,
}

impl Views {
    /// Whether no granule is mapped more than once.
    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    /// All views of a granule that is mapped more than once; none for any other.
    pub fn of(&self, handle: u64) -> &[View] {
        self.by_handle.get(&handle).map_or(&[], Vec::as_slice)
    }

    /// Notes that a granule, which is mapped at `from`, is now also mapped at `to`.
    pub fn add(&mut self, handle: u64, from: View, to: View) {
        self.by_handle.entry(handle).or_insert_with(|| vec![from]).push(to);
    }

    /// Notes that a granule is no longer mapped here.
    pub fn remove(&mut self, handle: u64, view: View) {
        if let Some(views) = self.by_handle.get_mut(&handle) {
            views.retain(|&other| other != view);
            if views.len() < 2 {
                self.by_handle.remove(&handle);
            }
        }
    }

    /// From now on, notes frees in a view. Its segment has this many granules.
    pub fn watch(&mut self, view: View, granules_in_segment: usize) {
        let segments = self.watched.len().max(view.segment as usize + 1);
        self.watched.resize(segments, Vec::new());
        let bits = &mut self.watched[view.segment as usize];
        bits.resize(granules_in_segment.div_ceil(64), 0);
        bits[view.granule as usize / 64] |= 1 << (view.granule % 64);
    }

    /// Whether frees in any granule of a segment are noted.
    #[inline]
    pub fn watches(&self, segment: u32) -> bool {
        self.watched.get(segment as usize).is_some_and(|bits| !bits.is_empty())
    }

    /// Notes a free in a view, if it is watched. The view is watched no longer, because one note is enough.
    pub fn note_freed(&mut self, view: View) {
        let bits = &mut self.watched[view.segment as usize];
        let (word, bit) = (&mut bits[view.granule as usize / 64], 1 << (view.granule % 64));
        if *word & bit != 0 {
            *word &= !bit;
            self.freed.push(view);
        }
    }

    pub fn take_freed(&mut self) -> Vec<View> {
        std::mem::take(&mut self.freed)
    }

    pub fn add_stale(&mut self, view: View) {
        if !self.stale.contains(&view) {
            self.stale.push(view);
        }
    }

    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    pub fn take_stale(&mut self) -> Vec<View> {
        std::mem::take(&mut self.stale)
    }
}
