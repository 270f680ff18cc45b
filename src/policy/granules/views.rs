//! Granules that are mapped at more than one address.
//!
//! What is free of a granule that is partly in use can be used at another address as well, where it has the neighbours
//! that a request needs. So that nothing is counted twice, every byte of a granule belongs to one of its views: there
//! it is part of a block, and in the others it is a hole. Bytes change their view while they are free and clean. Free
//! bytes that lie side by side in the granule are gathered in one view, or they would be fragments for good.
//!
//! What is written through one address of a granule is seen through another only once the work that wrote it has ended
//! (CUDA C++ Programming Guide, Virtual Memory Management, Virtual Aliasing Support). That is so here: bytes change their
//! view after the context was synchronised, and no two blocks share any.

use std::collections::HashMap;
use std::ops::Range;

use super::super::arena::Arena;
use super::super::blocks::{Id, Kind, NONE, UNIT};
use super::Granules;
use crate::device_memory::{DeviceMemory, DriverError};

/// A granule's place: segment, and number in it.
pub type Slot = (u32, u32);

#[derive(Default)]
pub struct Views {
    /// Every place of the granules that are mapped more than once, by handle.
    slots: HashMap<u64, Vec<Slot>>,
    /// Where something was freed of a granule with several views, since it was last gathered.
    touched: Vec<Slot>,
    /// By segment a bit for each granule that is to be noted there. This is on the way of every free.
    watched: Vec<Vec<u64>>,
    /// Places where nothing belongs any more, that could not be unmapped.
    stale: Vec<Slot>,
    /// The layer below maps nothing twice.
    refused: bool,
}

/// Free bytes of a granule, in units from its beginning, in one of its views.
struct Fragment {
    start: u32,
    units: u32,
    slot: Slot,
}

impl Granules {
    /// Whether granules can be mapped more than once. Not while a place that is empty stays mapped: where the layer below
    /// does not unmap, every view would leave one more behind.
    pub fn aliases(&self) -> bool {
        !self.views.refused && self.holes_are_empty()
    }

    /// Whether every hole is unmapped.
    pub fn holes_are_empty(&self) -> bool {
        self.views.stale.is_empty()
    }

    fn handle(&self, (segment, granule): Slot) -> u64 {
        let slots = self.handles.get(&segment);
        slots
            .and_then(|slots| slots.get(granule as usize))
            .copied()
            .unwrap_or(0)
    }

    fn slot_of(&self, arena: &Arena, address: u64) -> Option<Slot> {
        let segment = arena.blocks.segment_of(arena.blocks.holding(address)?);
        let distance = address - arena.blocks.base(segment);
        Some((segment, (distance / self.size) as u32))
    }

    /// Notes that `run` is free now.
    pub fn freed(&mut self, arena: &Arena, run: Id) {
        let segment = arena.blocks.segment_of(run);
        let Some(watched) = self
            .views
            .watched
            .get_mut(segment as usize)
            .filter(|words| !words.is_empty())
        else {
            return;
        };
        let (start, units) = (arena.blocks.offset(run), arena.blocks.units(run));
        // A power of two.
        let shift = (self.size / UNIT).trailing_zeros();
        // Of a granule with several views no block has all: it is at an end of the free block.
        for unit in [start, start + units - 1] {
            let granule = unit >> shift;
            let (word, bit) = (&mut watched[granule as usize / 64], 1 << (granule % 64));
            if *word & bit != 0 {
                *word &= !bit;
                self.views.touched.push((segment, granule));
            }
        }
    }

    fn watch(&mut self, handle: u64) {
        for &(segment, granule) in self.views.slots.get(&handle).into_iter().flatten() {
            let granules = self.handles.get(&segment).map_or(0, Vec::len);
            let known = self.views.watched.len().max(segment as usize + 1);
            self.views.watched.resize(known, Vec::new());
            let words = &mut self.views.watched[segment as usize];
            words.resize(granules.div_ceil(64), 0);
            words[granule as usize / 64] |= 1 << (granule % 64);
        }
    }

    /// Maps the granule at `address` at `to` as well, and moves `units` of it from `address` on there: free and clean.
    pub(super) fn view(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        address: u64,
        units: u32,
        to: Slot,
    ) -> Result<(), DriverError> {
        let from = self.slot_of(arena, address).ok_or(DriverError::INVALID_VALUE)?;
        let handle = self.handle(from);
        let start = self.address(arena, to.0, to.1);
        let mapped = memory.map(start, self.size, handle);
        mapped.inspect_err(|_| self.views.refused = true)?;
        self.handles.entry(to.0).or_default()[to.1 as usize] = handle;
        self.views.slots.entry(handle).or_insert_with(|| vec![from]).push(to);
        if let Err(problem) = memory.allow_access(start, self.size) {
            self.views.refused = true;
            self.unmap_unused(arena, memory, to);
            return Err(problem);
        }
        self.watch(handle);
        self.pass_on(arena, memory, address, units, start + address % self.size);
        self.unmap_unused(arena, memory, from);
        Ok(())
    }

    /// Free, clean memory changes its view.
    fn pass_on(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, from: u64, units: u32, to: u64) {
        let size = u64::from(units) * UNIT;
        if let Some(run) = arena.blocks.holding(from) {
            arena.hollow(run, from, units);
            memory.unmapped(from, size, true);
        }
        if let Some(hole) = arena.blocks.holding(to) {
            arena.fill(hole, to, units);
            memory.mapped(to, size, true);
        }
        self.remapped += size;
    }

    /// Unmaps a granule where nothing of it belongs any more.
    fn unmap_unused(&mut self, arena: &Arena, memory: &dyn DeviceMemory, slot: Slot) {
        let address = self.address(arena, slot.0, slot.1);
        let used = arena.blocks.holding(address).is_none_or(|id| {
            let end = arena.blocks.address(id) + u64::from(arena.blocks.units(id)) * UNIT;
            arena.blocks.kind(id) != Kind::Hole || end < address + self.size
        });
        if used || self.handle(slot) == 0 {
            return;
        }
        if memory.unmap(address, self.size).is_err() {
            if !self.views.stale.contains(&slot) {
                self.views.stale.push(slot);
            }
            return;
        }
        let handle = std::mem::take(&mut self.handles.entry(slot.0).or_default()[slot.1 as usize]);
        if let Some(slots) = self.views.slots.get_mut(&handle) {
            slots.retain(|&other| other != slot);
            if slots.len() < 2 {
                self.views.slots.remove(&handle);
            }
        }
    }

    /// Whether each of these granules, of which every byte belongs here, is mapped nowhere else.
    pub(super) fn seen_once(
        &mut self,
        arena: &Arena,
        memory: &dyn DeviceMemory,
        segment: u32,
        granules: Range<u32>,
    ) -> bool {
        if self.views.slots.is_empty() {
            return true;
        }
        granules.into_iter().all(|granule| {
            let handle = self.handle((segment, granule));
            for slot in self.views.slots.get(&handle).cloned().unwrap_or_default() {
                self.unmap_unused(arena, memory, slot);
            }
            !self.views.slots.contains_key(&handle)
        })
    }

    /// Brings free bytes that lie side by side in a granule into one view. All free memory is clean.
    pub fn gather(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) {
        for slot in std::mem::take(&mut self.views.stale) {
            self.unmap_unused(arena, memory, slot);
        }
        for slot in std::mem::take(&mut self.views.touched) {
            let handle = self.handle(slot);
            self.watch(handle);
            let fragments = self.fragments(arena, handle);
            for together in fragments.chunk_by(|one, next| one.start + one.units == next.start) {
                let Some(target) = self.best_view(arena, together) else {
                    continue;
                };
                let start = self.address(arena, target.0, target.1);
                for fragment in together.iter().filter(|fragment| fragment.slot != target) {
                    let within = u64::from(fragment.start) * UNIT;
                    let from = self.address(arena, fragment.slot.0, fragment.slot.1) + within;
                    self.pass_on(arena, memory, from, fragment.units, start + within);
                    self.unmap_unused(arena, memory, fragment.slot);
                }
            }
        }
    }

    /// What is free of a granule, in the order of its bytes.
    fn fragments(&self, arena: &Arena, handle: u64) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        for &slot in self.views.slots.get(&handle).into_iter().flatten() {
            let (first, end) = (slot.1 * self.units(), (slot.1 + 1) * self.units());
            let mut next = arena
                .blocks
                .holding(self.address(arena, slot.0, slot.1))
                .unwrap_or(NONE);
            while next != NONE && arena.blocks.offset(next) < end {
                let (start, units) = (arena.blocks.offset(next), arena.blocks.units(next));
                let (from, to) = (start.max(first), (start + units).min(end));
                if arena.is_clean(next) {
                    fragments.push(Fragment {
                        start: from - first,
                        units: to - from,
                        slot,
                    });
                }
                next = arena.blocks.next(next);
            }
        }
        fragments.sort_unstable_by_key(|fragment| fragment.start);
        fragments
    }

    /// Of the views that have a part of these bytes, the one where most of them go on beyond the granule; `None` where
    /// they are in one view already.
    fn best_view(&self, arena: &Arena, together: &[Fragment]) -> Option<Slot> {
        let (first, last) = (together.first()?, together.last()?);
        if together.len() < 2 {
            return None;
        }
        let goes_on = |slot: Slot| {
            let start = self.address(arena, slot.0, slot.1);
            let is_free = |address: u64| arena.blocks.holding(address).is_some_and(|id| arena.is_clean(id));
            let before = first.start == 0 && is_free(start.wrapping_sub(UNIT));
            let after = last.start + last.units == self.units() && is_free(start + self.size);
            u8::from(before) + u8::from(after)
        };
        // The first of equals.
        together
            .iter()
            .map(|fragment| fragment.slot)
            .rev()
            .max_by_key(|&slot| goes_on(slot))
    }
}
