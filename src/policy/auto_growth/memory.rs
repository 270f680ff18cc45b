//! The memory that `auto_growth` maps itself.

use super::handles::Handles;
use super::headroom::Headroom;
use super::space::{LARGEST_ALIGNMENT, LARGEST_RANGE, Space};
use super::stitches::Stitches;
use super::tuned;
use crate::arena::{Arena, Region};
use crate::device_memory::Available;
use crate::holdings::{Backing, Block, Statistics, VirtualMemory};
use crate::{Mapping, Settings};

#[derive(Default)]
pub struct Memory {
    /// Handles are multiples of so many bytes.
    pub(super) granule: u64,
    pub(super) headroom: Headroom,
    pub handles: Handles,
    pub stitches: Stitches,
    /// Reserved addresses for homes: first address and bytes.
    pub(super) homes: Vec<(u64, u64)>,
    pub(super) space: Space,
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
    /// How many more handles may be looked at for small requests.
    pub(super) looks_left: u64,
    /// Where the request lies in the stitch that has just been made for it.
    pub(super) made: Option<u64>,
    /// Bytes of the handles of each region.
    pub(super) held: [u64; Region::ALL.len()],
    /// Whether smaller requests may have addresses of their own.
    pub(super) may_part: bool,
}

impl Memory {
    /// `granularity` and `available` are the device's. The thread may have a small stack, so the large frame of this function is
    /// its own.
    #[cold]
    #[inline(never)]
    pub fn boxed(granularity: u64, available: Available, settings: &Settings) -> Box<Self> {
        // Stitches begin at multiples of a granule, and have to serve requests of any alignment.
        let granularity = granularity.max(LARGEST_ALIGNMENT);
        // Whatever size was set, handles are small beside the device: a rest that is less cannot be used.
        let most = (available.total / tuned::STEP_OF_HEADROOM).clamp(granularity, LARGEST_RANGE / 2);
        let granule = settings
            .chunk_bytes
            .clamp(granularity, 1 << most.ilog2())
            .next_power_of_two();
        let mut memory = Box::<Memory>::default();
        memory.granule = granule;
        memory.headroom.learn(available, 0);
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
