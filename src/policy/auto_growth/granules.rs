//! Physical memory in granules, and the reserved address space that they are mapped into.
//!
//! Each granule has a handle of its own. So a granule that is wholly free can be mapped elsewhere or be given back. A
//! granule that is partly in use cannot move, but it can be mapped a second time, and its free part be used there (see
//! `aliasing`). This file has the struct and its questions; `composing` and `aliasing` add what changes mappings.

use std::collections::HashMap;
use std::ops::Range;

use super::views::{View, Views};
use crate::arena::{Arena, Cut, Region};
use crate::blocks::{Id, UNIT};
use crate::policy::{Backing, Block, Statistics, VirtualMemory};

/// The largest reserved range of addresses, in bytes. Units are counted in 32 bits, and the sizes of two neighbours are
/// added.
pub const LARGEST_RANGE: u64 = 1 << 40;
/// A granule is at most this part of the device's memory, whatever size was set: a rest that is less than a granule
/// cannot be used.
const LEAST_GRANULES_PER_DEVICE: u64 = 16;

/// Which free granules may be used for a new block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeGranules {
    /// None: all granules must be new.
    None,
    /// All but one of the small region. If small requests lost their last free granule to large ones, it would be moved
    /// back and forth.
    AllButOneSmall,
    All,
}

pub struct Granules {
    /// Bytes of a granule, a power of two.
    pub(super) size: u64,
    /// By segment, the handle of each granule; 0 if nothing is mapped there.
    pub(super) handles: HashMap<u32, Vec<u64>>,
    /// Handles of granules that are mapped nowhere.
    pub(super) unmapped: Vec<u64>,
    pub(super) views: Views,
    /// Total bytes that were moved from one place to another.
    pub(super) remapped: u64,
    abandoned: bool,
}

impl Granules {
    /// `wanted` is the size of a granule that was set; `total` is the device's memory.
    pub fn new(granularity: u64, wanted: u64, total: u64) -> Self {
        let most = (total / LEAST_GRANULES_PER_DEVICE).clamp(granularity, LARGEST_RANGE / 8);
        // A reserved range can only be aligned to a power of two.
        let size = wanted.clamp(granularity, 1 << most.ilog2()).next_power_of_two();
        Granules {
            size,
            handles: HashMap::new(),
            unmapped: Vec::new(),
            views: Views::default(),
            remapped: 0,
            abandoned: false,
        }
    }

    /// Units of a granule, a power of two.
    pub fn units(&self) -> u32 {
        (self.size / UNIT) as u32
    }

    /// Virtual memory management fails here: no more memory is obtained through it.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Whether a block is in granules, and not in a chunk.
    pub fn hold(&self, arena: &Arena, id: Id) -> bool {
        self.handles.contains_key(&arena.blocks.segment_of(id))
    }

    /// The granules that are wholly in a block, numbered from the beginning of the segment.
    pub fn whole_in(&self, arena: &Arena, id: Id) -> Range<u32> {
        if !self.hold(arena, id) {
            return 0..0;
        }
        let (start, units) = (arena.blocks.offset(id), arena.blocks.units(id));
        let first = start.div_ceil(self.units());
        first..((start + units) / self.units()).max(first)
    }

    /// The end of a free block at which a request leaves more granules whole.
    pub fn best_end(&self, arena: &Arena, free_block: Id) -> Cut {
        let (start, units) = (arena.blocks.offset(free_block), arena.blocks.units(free_block));
        // A mask instead of a division, because every request comes here.
        let within = self.units() - 1;
        let (head, tail) = (start & within, (start + units) & within);
        if head == 0 && tail != 0 { Cut::Tail } else { Cut::Head }
    }

    /// How many granules of the clean blocks a block of `region` could use.
    pub fn count_free(&self, arena: &Arena, region: Region, from: FreeGranules) -> usize {
        let of = |region: Region| -> usize {
            let clean = arena.clean_blocks(region, self.units());
            clean.map(|id| self.whole_in(arena, id).len()).sum()
        };
        match from {
            FreeGranules::None => 0,
            FreeGranules::AllButOneSmall if region == Region::Main => {
                of(Region::Main) + of(Region::Small).saturating_sub(1)
            }
            _ => of(Region::Main) + of(Region::Small),
        }
    }

    pub(super) fn address(&self, arena: &Arena, view: View) -> u64 {
        arena.blocks.base(view.segment) + u64::from(view.granule) * self.size
    }

    /// The view that contains `address`.
    pub(super) fn view_at(&self, arena: &Arena, address: u64) -> Option<View> {
        let segment = arena.blocks.segment_of(arena.blocks.containing(address)?);
        let distance = address - arena.blocks.base(segment);
        Some(View {
            segment,
            granule: (distance / self.size) as u32,
        })
    }

    /// The handle that is mapped here; 0 if none is.
    pub(super) fn handle(&self, view: View) -> u64 {
        let handles = self.handles.get(&view.segment);
        handles
            .and_then(|handles| handles.get(view.granule as usize))
            .copied()
            .unwrap_or(0)
    }

    pub(super) fn set_handle(&mut self, view: View, handle: u64) {
        self.handles.entry(view.segment).or_default()[view.granule as usize] = handle;
    }

    /// The granules behind a live block.
    pub fn behind(&self, arena: &Arena, block: &Block) -> Option<Backing> {
        let id = arena.blocks.containing(block.address)?;
        let segment = arena.blocks.segment_of(id);
        let handles = self.handles.get(&segment)?;
        let base = arena.blocks.base(segment);
        let (first, end) = (block.address - base, block.address + block.allocated - base);
        let granules = (first / self.size) as usize..end.div_ceil(self.size) as usize;
        Some(Backing::Granules {
            address: base + granules.start as u64 * self.size,
            size: self.size,
            handles: handles.get(granules)?.to_vec(),
        })
    }

    pub fn virtual_memory(&self, arena: &Arena) -> VirtualMemory {
        let mut held = VirtualMemory {
            handles: self.unmapped.clone(),
            ..VirtualMemory::default()
        };
        for (&segment, handles) in &self.handles {
            let base = arena.blocks.base(segment);
            held.ranges.push((base, handles.len() as u64 * self.size));
            for (index, &handle) in handles.iter().enumerate().filter(|&(_, &handle)| handle != 0) {
                held.mapped.push((base + index as u64 * self.size, self.size));
                held.handles.push(handle);
            }
        }
        // A granule can be mapped more than once.
        held.handles.sort_unstable();
        held.handles.dedup();
        held
    }

    pub fn add_statistics(&self, statistics: &mut Statistics) {
        let unmapped = self.unmapped.len() as u64 * self.size;
        statistics.reserved += unmapped;
        statistics.free += unmapped;
        statistics.remapped = self.remapped;
    }
}
