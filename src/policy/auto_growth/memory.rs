//! The memory that `auto_growth` maps itself.

use super::cycles::Cycles;
use super::handles::Handles;
use super::order::Order;
use super::sizes::Sizes;
use super::space::Space;
use super::stitches::Stitches;
use crate::arena::Arena;
use crate::holdings::{Backing, Block, Statistics, VirtualMemory};
use crate::{Mapping, Settings};

/// The largest alignment of a block in bytes.
pub(super) const LARGEST_ALIGNMENT: u64 = 2 << 20;
/// The largest range, in bytes: units are counted in 32 bits, and the sizes of two neighbours are added.
pub(super) const LARGEST_RANGE: u64 = 1 << 40;
/// Handles are multiples of at most this part of the device's memory, whatever size was set: a rest that is less cannot
/// be used.
const LEAST_GRANULES_PER_DEVICE: u64 = 16;

#[derive(Default)]
pub struct Memory {
    /// Handles are multiples of so many bytes.
    pub(super) granule: u64,
    /// The device's memory; 0 if it is not known.
    pub(super) total: u64,
    /// Whether the user has chosen to spare memory rather than driver calls.
    pub(super) tight: bool,
    pub handles: Handles,
    pub stitches: Stitches,
    /// Reserved addresses for homes: first address and bytes.
    pub(super) homes: Vec<(u64, u64)>,
    pub(super) space: Space,
    pub(super) sizes: Sizes,
    pub(super) order: Order,
    /// Whether the device had less memory than was asked for. Until it has some again, nothing is asked for that is not
    /// needed.
    pub(super) is_scarce: bool,
    /// Whether the next layer is known to map a handle twice as it should.
    pub(super) may_stitch: bool,
    /// How many stitches could not be made, one after the other; counted until the first is made.
    pub(super) stitch_failures: u32,
    pub(super) has_stitched: bool,
    /// Whether the next growth must do without a stitch, because one has just failed.
    pub(super) skips_stitch: bool,
    /// Whether the next layer refused to unmap when it was asked last. A request does not ask it again: it could ask for ever.
    pub(super) unmaps_in_vain: bool,
    /// How many handles may be looked at for small requests.
    pub(super) looks_left: u64,
    /// For how many more requests the tightest place is looked for.
    pub(super) searches_left: u32,
    pub(super) cycles: Cycles,
    /// Where the request lies in the stitch that has just been made for it.
    pub(super) made: Option<u64>,
    /// Whether addresses are reserved for the region of small requests, and whether the region may grow.
    pub(super) has_small_region: bool,
    pub(super) may_part: bool,
}

impl Memory {
    /// `granularity` and `total` are the device's. The thread may have a small stack, so the large frame of this function is
    /// its own.
    #[cold]
    #[inline(never)]
    pub fn boxed(granularity: u64, total: u64, settings: &Settings) -> Box<Self> {
        // Stitches begin at multiples of a granule, and have to serve requests of any alignment.
        let granularity = granularity.max(LARGEST_ALIGNMENT);
        let most = (total / LEAST_GRANULES_PER_DEVICE).clamp(granularity, LARGEST_RANGE / 8);
        let granule = settings
            .chunk_bytes
            .clamp(granularity, 1 << most.ilog2())
            .next_power_of_two();
        let mut memory = Box::<Memory>::default();
        memory.granule = granule;
        memory.total = total;
        memory.tight = false;
        memory.handles = Handles::new(granule, total);
        memory.may_stitch = settings.mapping == Mapping::Free;
        memory.may_part = true;
        memory
    }

    /// Whether reserved addresses for homes begin here.
    pub fn is_home(&self, address: u64) -> bool {
        self.homes.iter().any(|&(start, _)| start == address)
    }

    /// The handles behind a live block, with the addresses at home that it covers.
    fn behind(&self, block: &Block) -> Vec<(u64, u64)> {
        if let Some((_, parts)) = self.stitches.behind(block) {
            return parts
                .into_iter()
                .map(|(part, range)| (part.home, range.start))
                .collect();
        }
        let range = block.address..block.address + block.allocated;
        let handles = self.handles.in_range(range.clone());
        handles.map(|(home, _)| (home, home.max(range.start))).collect()
    }

    pub fn backing(&self, block: &Block) -> Option<Backing> {
        let parts = self.behind(block);
        let &(first, start) = parts.first()?;
        let handles = parts.iter().filter_map(|(home, _)| self.handles.by_home.get(home));
        Some(Backing::Handles {
            offset: start - first,
            handles: handles.map(|handle| (handle.name, handle.bytes)).collect(),
        })
    }

    pub fn virtual_memory(&self) -> VirtualMemory {
        let mut held = VirtualMemory::default();
        self.handles.add_to(&mut held);
        self.stitches.add_to(&mut held);
        held.handles.sort_unstable();
        held.ranges.extend(self.homes.iter().chain(&self.space.ranges));
        held
    }

    /// Takes all addresses out of the books, if nothing is mapped there and no thread is mapping or unmapping. Returns
    /// their ranges.
    pub fn withdraw_addresses(&mut self, arena: &mut Arena) -> Vec<(u64, u64)> {
        let held = self.virtual_memory();
        let is_vacant = held.handles.is_empty()
            && held.mapped.is_empty()
            && self
                .homes
                .iter()
                .all(|&(address, bytes)| arena.whole_hole(address, bytes).is_some())
            && self.space.is_vacant();
        if !is_vacant {
            return Vec::new();
        }
        for (address, bytes) in std::mem::take(&mut self.homes) {
            if let Some(hole) = arena.whole_hole(address, bytes) {
                arena.remove_hole(hole);
            }
        }
        self.space = Space::default();
        self.has_small_region = false;
        held.ranges
    }

    pub fn add_statistics(&self, statistics: &mut Statistics) {
        let left = self.handles.left_bytes();
        statistics.reserved += left;
        statistics.free += left;
        statistics.handles = self.handles.by_home.len() + self.handles.left.len();
        self.stitches.add_statistics(statistics);
    }
}
