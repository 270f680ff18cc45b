//! How mapped memory is given back: handles without a live block, and stitches.

use super::handles::Handle;
use super::mapping::{Leaving, Released, Stage, Unmap};
use super::memory::Memory;
use super::tuned;
use crate::arena::Arena;
use crate::blocks::Kind;
use crate::request::UNIT;
use crate::work::Work;

impl Memory {
    /// Unmaps the stitches that were not used for longest.
    pub(super) fn evict(&mut self, arena: &Arena) -> Option<Work> {
        let numbers = self.stitches.least_used(arena, tuned::EVICTED);
        let stitches = self.take_stitches(&numbers);
        let handles = Vec::new();
        (!stitches.is_empty()).then(|| Work::Unmap(Box::new(Unmap::new(stitches, handles))))
    }

    fn take_stitches(&mut self, numbers: &[u64]) -> Vec<Leaving> {
        let mut leaving = Vec::new();
        for &number in numbers {
            let Some(stitch) = self.stitches.remembered.get_mut(&number) else {
                continue;
            };
            stitch.leaves = true;
            leaving.push(Leaving {
                number,
                address: stitch.address,
                bytes: stitch.mapped_bytes(),
                was_usable: stitch.is_usable,
                homes: stitch.parts.iter().map(|part| part.home).collect(),
                is_gone: false,
            });
        }
        leaving
    }

    /// Whether a handle holds no live block.
    pub fn has_idle(&self, arena: &Arena) -> bool {
        !self.handles.left.is_empty() || self.handles.by_home.iter().any(|handle| is_idle(arena, handle))
    }

    /// Takes handles out that hold no live block, with the stitches that they are in, to be given back: few, and not much more
    /// than `wanted` bytes.
    pub fn release_idle(&mut self, arena: &mut Arena, wanted: u64) -> Option<Work> {
        let mut handles = std::mem::take(&mut self.handles.left);
        let mut stitches = self.stitches.broken(arena);
        let idle = self.handles.by_home.iter().filter(|&handle| is_idle(arena, handle));
        let mut idle: Vec<(u64, u64)> = idle.map(|(&home, handle)| (handle.bytes, home)).collect();
        idle.sort_unstable();
        let mut lacking = wanted;
        while lacking > 0 && !idle.is_empty() {
            // The smallest that is enough, otherwise the largest.
            let enough = idle.partition_point(|&(bytes, _)| bytes < lacking);
            let (_, home) = idle.remove(enough.min(idle.len() - 1));
            let with: Vec<u64> = self.stitches.with_part(home).collect();
            let can_leave = |number: &u64| stitches.contains(number) || self.stitches.can_leave(arena, *number);
            if !with.iter().all(can_leave) {
                continue;
            }
            stitches.extend(with);
            let (bytes, name) = match self.handles.by_home.get(&home) {
                Some(handle) => (handle.bytes, handle.name),
                None => continue,
            };
            let Some(id) = arena.blocks.containing(home) else {
                continue;
            };
            lacking = lacking.saturating_sub(bytes);
            handles.push(Released {
                home,
                base: arena.blocks.segment_base(id),
                bytes,
                name,
                claim: arena.claim(id, home, (bytes / UNIT) as u32),
                was_usable: true,
                stage: Stage::Usable,
            });
        }
        handles.sort_unstable_by_key(|handle| handle.home);
        let numbers: Vec<u64> = stitches.into_iter().collect();
        let stitches = self.take_stitches(&numbers);
        let is_empty = stitches.is_empty() && handles.is_empty();
        (!is_empty).then(|| Work::Unmap(Box::new(Unmap::new(stitches, handles))))
    }

    pub fn unmapped(&mut self, arena: &mut Arena, unmap: Unmap) {
        if unmap.was_tried {
            self.unmaps_in_vain = unmap.was_in_vain();
        }
        for leaving in unmap.stitches {
            if !leaving.is_gone {
                if let Some(stitch) = self.stitches.remembered.get_mut(&leaving.number) {
                    stitch.leaves = false;
                }
                continue;
            }
            if let Some(stitch) = self.stitches.remove(leaving.number) {
                self.space.give(stitch.address, stitch.bytes());
            }
        }
        for handle in unmap.handles {
            let (home, bytes) = (handle.home, handle.bytes);
            if handle.stage == Stage::Usable {
                arena.settle(handle.claim, Kind::Free);
                continue;
            }
            if handle.was_usable {
                self.handles.by_home.remove(&home);
                self.held[arena.region(handle.claim.id) as usize] -= bytes;
            }
            let hole = arena.settle(handle.claim, Kind::Hole);
            if handle.stage == Stage::Absent {
                self.is_scarce = false;
                continue;
            }
            let claim = arena.claim(hole, home, (bytes / UNIT) as u32);
            self.handles.left.push(handle.left(claim));
        }
    }
}

fn is_idle(arena: &Arena, (&home, handle): (&u64, &Handle)) -> bool {
    handle.holds == 0 && arena.is_range_clean(&(home..home + handle.bytes))
}
