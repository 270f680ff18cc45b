//! Granules that are mapped at more than one address.
//!
//! The free part of a granule in use can be mapped at another address as well, where it has the neighbours that a
//! request needs. Every byte of a granule belongs to exactly one view, so nothing is counted twice: it is part of a
//! block there, and part of a hole in the other views. Bytes move to another view while they are free and clean. Free
//! bytes that are side by side in the granule are gathered in one view, because they would stay fragments otherwise.
//!
//! A write through one address is visible through another only after the work that wrote it has finished (CUDA C++
//! Programming Guide, Virtual Memory Management, Virtual Aliasing Support). This holds here: bytes move to another view
//! only after they have become clean, and no two blocks share a byte.

use std::ops::Range;

use base::cuda::DriverError;

use super::granules::Granules;
use super::views::View;
use crate::arena::Arena;
use crate::blocks::{Id, Kind, NONE, UNIT};
use crate::device_memory::DeviceMemory;

/// Free bytes of a granule in one of its views.
struct Fragment {
    /// Distance from the beginning of the granule, in units.
    start: u32,
    units: u32,
    view: View,
}

impl Granules {
    /// Whether granules can be mapped more than once now. They cannot while a stale view exists: if the next layer does
    /// not unmap, each new view would leave another stale one behind.
    pub fn can_alias(&self) -> bool {
        !self.views.refused && self.holes_are_unmapped()
    }

    /// Whether nothing is mapped in any hole.
    pub fn holes_are_unmapped(&self) -> bool {
        !self.views.has_stale()
    }

    /// Notes that `free_block` is free and clean now.
    pub fn after_clean(&mut self, arena: &Arena, free_block: Id) {
        let segment = arena.blocks.segment_of(free_block);
        if !self.views.watches(segment) {
            return;
        }
        let (start, units) = (arena.blocks.offset(free_block), arena.blocks.units(free_block));
        // A shift instead of a division, because every free comes here.
        let shift = (self.size / UNIT).trailing_zeros();
        // No block contains the whole of a granule with several views, so such a granule is at an end of the free
        // block.
        for unit in [start, start + units - 1] {
            let granule = unit >> shift;
            self.views.note_freed(View { segment, granule });
        }
    }

    /// Watches all views of a granule for frees.
    fn watch(&mut self, handle: u64) {
        for view in self.views.of(handle).to_vec() {
            let granules = self.handles.get(&view.segment).map_or(0, Vec::len);
            self.views.watch(view, granules);
        }
    }

    /// Maps the granule at `address` in the view `to` as well, and moves the `units` from `address` on there. They are
    /// free and clean.
    pub(super) fn alias(
        &mut self,
        arena: &mut Arena,
        memory: &dyn DeviceMemory,
        address: u64,
        units: u32,
        to: View,
    ) -> Result<(), DriverError> {
        let from = self.view_at(arena, address).ok_or(DriverError::INVALID_VALUE)?;
        let handle = self.handle(from);
        let start = self.address(arena, to);
        let mapped = memory.map(start, self.size, handle);
        mapped.inspect_err(|_| self.views.refused = true)?;
        self.set_handle(to, handle);
        self.views.add(handle, from, to);
        if let Err(problem) = memory.allow_access(start, self.size) {
            self.views.refused = true;
            self.unmap_if_hole(arena, memory, to);
            return Err(problem);
        }
        self.watch(handle);
        self.move_bytes(arena, memory, address, units, start + address % self.size);
        self.unmap_if_hole(arena, memory, from);
        Ok(())
    }

    /// Moves free, clean bytes from one view of their granule to another.
    fn move_bytes(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory, from: u64, units: u32, to: u64) {
        let size = u64::from(units) * UNIT;
        if let Some(free_block) = arena.blocks.containing(from) {
            arena.hollow(free_block, from, units);
            memory.unmapped(from, size, true);
        }
        if let Some(hole) = arena.blocks.containing(to) {
            arena.fill(hole, to, units);
            memory.mapped(to, size, true);
        }
        self.remapped += size;
    }

    /// Unmaps a view that holds no bytes of its granule any more.
    fn unmap_if_hole(&mut self, arena: &Arena, memory: &dyn DeviceMemory, view: View) {
        let address = self.address(arena, view);
        let holds_bytes = arena.blocks.containing(address).is_none_or(|id| {
            let end = arena.blocks.address(id) + u64::from(arena.blocks.units(id)) * UNIT;
            arena.blocks.kind(id) != Kind::Hole || end < address + self.size
        });
        let handle = self.handle(view);
        if holds_bytes || handle == 0 {
            return;
        }
        if memory.unmap(address, self.size).is_err() {
            self.views.add_stale(view);
            return;
        }
        self.set_handle(view, 0);
        self.views.remove(handle, view);
    }

    /// Whether each of these granules is mapped only here. All of their bytes belong to the view here, so other views
    /// can be unmapped.
    pub(super) fn unalias(
        &mut self,
        arena: &Arena,
        memory: &dyn DeviceMemory,
        segment: u32,
        granules: Range<u32>,
    ) -> bool {
        if self.views.is_empty() {
            return true;
        }
        granules.into_iter().all(|granule| {
            let handle = self.handle(View { segment, granule });
            for view in self.views.of(handle).to_vec() {
                self.unmap_if_hole(arena, memory, view);
            }
            self.views.of(handle).is_empty()
        })
    }

    /// Moves clean bytes that are side by side in a granule into one view.
    pub fn gather(&mut self, arena: &mut Arena, memory: &dyn DeviceMemory) {
        for view in self.views.take_stale() {
            self.unmap_if_hole(arena, memory, view);
        }
        for view in self.views.take_freed() {
            let handle = self.handle(view);
            self.watch(handle);
            let fragments = self.fragments(arena, handle);
            for adjacent in fragments.chunk_by(|one, next| one.start + one.units == next.start) {
                let Some(target) = self.best_view(arena, adjacent) else {
                    continue;
                };
                let start = self.address(arena, target);
                for fragment in adjacent.iter().filter(|fragment| fragment.view != target) {
                    let within = u64::from(fragment.start) * UNIT;
                    let from = self.address(arena, fragment.view) + within;
                    self.move_bytes(arena, memory, from, fragment.units, start + within);
                    self.unmap_if_hole(arena, memory, fragment.view);
                }
            }
        }
    }

    /// The clean bytes of a granule in all of its views, ordered by their distance from its beginning.
    fn fragments(&self, arena: &Arena, handle: u64) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        for &view in self.views.of(handle) {
            let (first, end) = (view.granule * self.units(), (view.granule + 1) * self.units());
            let mut next = arena.blocks.containing(self.address(arena, view)).unwrap_or(NONE);
            while next != NONE && arena.blocks.offset(next) < end {
                let (start, units) = (arena.blocks.offset(next), arena.blocks.units(next));
                let (from, to) = (start.max(first), (start + units).min(end));
                if arena.is_clean(next) {
                    fragments.push(Fragment {
                        start: from - first,
                        units: to - from,
                        view,
                    });
                }
                next = arena.blocks.next(next);
            }
        }
        fragments.sort_unstable_by_key(|fragment| fragment.start);
        fragments
    }

    /// The view in which adjacent fragments are best gathered: the one where they have the most free neighbours beyond
    /// the granule. `None` if there is only one fragment.
    fn best_view(&self, arena: &Arena, adjacent: &[Fragment]) -> Option<View> {
        let (first, last) = (adjacent.first()?, adjacent.last()?);
        if adjacent.len() < 2 {
            return None;
        }
        let free_neighbours = |view: View| {
            let start = self.address(arena, view);
            let is_free = |address: u64| arena.blocks.containing(address).is_some_and(|id| arena.is_clean(id));
            let before = first.start == 0 && is_free(start.wrapping_sub(UNIT));
            let after = last.start + last.units == self.units() && is_free(start + self.size);
            u8::from(before) + u8::from(after)
        };
        // `max_by_key` returns the last of several equal views, so the reversed order returns the first.
        adjacent
            .iter()
            .map(|fragment| fragment.view)
            .rev()
            .max_by_key(|&view| free_neighbours(view))
    }
}
