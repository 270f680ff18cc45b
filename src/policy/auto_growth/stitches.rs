//! Stitches: ranges of addresses at which handles are mapped a second time, side by side.
//!
//! A stitch owns no bytes. A block in a stitch takes the bytes that it covers at home, where they are parts of a live
//! block meanwhile, and gives them back there when it is freed. So no two blocks share a byte, at whatever addresses. What
//! was written at one address is visible at another when the work that wrote it is done (CUDA C++ Programming Guide,
//! Virtual Memory Management, Virtual Aliasing Support), and nobody gets the bytes before, or only the same stream.
//!
//! Stitches stay mapped and are remembered. The oldest stitch that serves a request is taken. A job that repeats itself
//! then makes the same choices again: an older one that served now would have been taken the last time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::mapping::Part;
use crate::arena::Arena;
use crate::holdings::{Block, Statistics, UsedBy, VirtualMemory};
use crate::request::{Request, UNIT};

#[derive(Debug, Default)]
pub struct Stitch {
    pub address: u64,
    pub parts: Vec<Part>,
    /// How many of the parts are mapped.
    pub mapped: usize,
    /// Whether it serves requests: making it may have failed, and not have been undone.
    pub is_usable: bool,
    /// How many live blocks need it.
    pub holds: u32,
    /// Whether it is being unmapped, so that it serves nobody.
    pub leaves: bool,
    /// How many dirty frees there were when a block in it was freed that work could still use.
    pub(super) used_until: Option<u64>,
    /// Grows with every use of any stitch.
    pub(super) used_last: u64,
}

impl Stitch {
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    pub fn mapped_bytes(&self) -> u64 {
        self.parts[..self.mapped].iter().map(|part| part.bytes).sum()
    }

    fn serves(&self) -> bool {
        self.is_usable && !self.leaves
    }

    /// The memory behind a range of the stitch: handles, with addresses at home.
    fn behind(&self, range: Range<u64>) -> impl Iterator<Item = Covered> + '_ {
        let mut at = self.address;
        let places = self.parts.iter().map(move |&part| {
            let place = at;
            at += part.bytes;
            (part, place)
        });
        places.filter_map(move |(part, place)| {
            let start = range.start.max(place);
            let end = range.end.min(place + part.bytes);
            (start < end).then(|| (part, part.home + (start - place)..part.home + (end - place)))
        })
    }

    /// The first address in the stitch at which the request finds usable memory.
    fn place(&self, arena: &Arena, request: &Request) -> Option<u64> {
        let alignment = u64::from(request.alignment) * UNIT;
        // The usable run that is looked at.
        let (mut start, mut end) = (self.address, self.address);
        let fits = |start: u64, end: u64| {
            let aligned = start.next_multiple_of(alignment);
            (aligned + request.rounded() <= end).then_some(aligned)
        };
        for part in &self.parts {
            let place = end;
            let after = arena.usable_around(part.home, request).end.min(part.home + part.bytes);
            end = place + (after - part.home);
            if let Some(found) = fits(start, end) {
                return Some(found);
            }
            if after < part.home + part.bytes {
                end = place + part.bytes;
                let before = arena.usable_around(part.home + part.bytes, request).start;
                start = end - (part.home + part.bytes - before.max(part.home));
                if let Some(found) = fits(start, end) {
                    return Some(found);
                }
            }
        }
        None
    }
}

/// A handle in a stitch, and the addresses at home that a block covers in it.
type Covered = (Part, Range<u64>);

/// A live block in a stitch.
#[derive(Clone, Copy, Debug)]
struct InStitch {
    stitch: u64,
    requested: u64,
    allocated: u64,
}

#[derive(Default)]
pub struct Stitches {
    /// By number, which grows with every stitch that is made.
    pub remembered: BTreeMap<u64, Stitch>,
    made: u64,
    /// By first address.
    by_address: BTreeMap<u64, u64>,
    /// By first address.
    live: BTreeMap<u64, InStitch>,
    /// How many stitches have a live block.
    in_use: usize,
    uses: u64,
}

impl Stitches {
    /// How many stitches have no live block.
    pub fn idle(&self) -> usize {
        self.remembered.len() - self.in_use
    }

    pub fn add(&mut self, stitch: Stitch) {
        self.made += 1;
        self.by_address.insert(stitch.address, self.made);
        self.remembered.insert(self.made, stitch);
    }

    pub fn remove(&mut self, number: u64) -> Option<Stitch> {
        let stitch = self.remembered.remove(&number)?;
        self.by_address.remove(&stitch.address);
        Some(stitch)
    }

    /// A block for the request in the oldest stitch that serves it.
    pub fn serve(&mut self, arena: &mut Arena, request: &Request) -> Option<Block> {
        let all = self.remembered.iter();
        let mut whole = all.filter(|(_, stitch)| stitch.serves() && stitch.bytes() >= request.rounded());
        let oldest = whole.find_map(|(&number, stitch)| Some((number, stitch.place(arena, request)?)));
        let (number, address) = oldest?;
        self.take(arena, request, number, address)
    }

    /// A block for the request at this address in a stitch, if its memory is usable.
    pub fn serve_at(&mut self, arena: &mut Arena, request: &Request, address: u64) -> Option<Block> {
        let (_, &number) = self.by_address.range(..=address).next_back()?;
        let stitch = self.remembered.get(&number).filter(|stitch| stitch.serves())?;
        let end = address + request.rounded();
        let is_usable = |(_, range): Covered| arena.usable_around(range.start, request).end >= range.end;
        let is_aligned = address.is_multiple_of(u64::from(request.alignment) * UNIT);
        if !is_aligned || end > stitch.address + stitch.bytes() || !stitch.behind(address..end).all(is_usable) {
            return None;
        }
        self.take(arena, request, number, address)
    }

    fn take(&mut self, arena: &mut Arena, request: &Request, number: u64, address: u64) -> Option<Block> {
        let stitch = self.remembered.get_mut(&number)?;
        for (_, range) in stitch.behind(address..address + request.rounded()) {
            arena.take_part(range.start, range.end - range.start);
        }
        self.uses += 1;
        stitch.used_last = self.uses;
        self.in_use += usize::from(stitch.holds == 0);
        stitch.holds += 1;
        let block = InStitch {
            stitch: number,
            requested: request.bytes,
            allocated: request.rounded(),
        };
        self.live.insert(address, block);
        Some(describe(address, &block))
    }

    /// Frees the live block that begins at `address`.
    pub fn free(&mut self, arena: &mut Arena, address: u64, used_by: UsedBy) -> Option<Block> {
        let block = self.live.remove(&address)?;
        let stitch = self.remembered.get_mut(&block.stitch)?;
        stitch.holds -= 1;
        self.in_use -= usize::from(stitch.holds == 0);
        if used_by != UsedBy::Nothing {
            // The parts join as one.
            stitch.used_until = Some(arena.dirty_frees + 1);
        }
        let parts = stitch.behind(address..address + block.allocated);
        arena.free_parts(parts.map(|(_, range)| range.start), used_by);
        Some(describe(address, &block))
    }

    /// Splits the live block that contains `address` in two; the second begins at `address`.
    pub fn split(&mut self, arena: &mut Arena, address: u64) {
        let Some((start, block)) = self.containing(address) else {
            return;
        };
        let Some(stitch) = self.remembered.get_mut(&block.stitch).filter(|_| start < address) else {
            return;
        };
        stitch.holds += 1;
        for (_, range) in stitch.behind(address..start + block.allocated).take(1) {
            arena.split_part(range.start);
        }
        let before = address - start;
        let first = InStitch {
            requested: before,
            allocated: before,
            ..block
        };
        let second = InStitch {
            requested: block.requested - before,
            allocated: block.allocated - before,
            ..block
        };
        self.live.insert(start, first);
        self.live.insert(address, second);
    }

    fn containing(&self, address: u64) -> Option<(u64, InStitch)> {
        let (&start, &block) = self.live.range(..=address).next_back()?;
        (address - start < block.allocated).then_some((start, block))
    }

    pub fn find(&self, address: u64) -> Option<Block> {
        let (start, block) = self.containing(address)?;
        Some(describe(start, &block))
    }

    pub fn owns(&self, address: u64) -> bool {
        let stitch = self.by_address.range(..=address).next_back();
        let stitch = stitch.and_then(|(_, number)| self.remembered.get(number));
        stitch.is_some_and(|stitch| address - stitch.address < stitch.bytes())
    }

    /// The stitch of a live block, and the handles behind it with the addresses at home that they cover.
    pub fn behind(&self, block: &Block) -> Option<(u64, Vec<Covered>)> {
        let (_, in_stitch) = self.containing(block.address)?;
        let stitch = self.remembered.get(&in_stitch.stitch)?;
        let parts = stitch.behind(block.address..block.address + block.allocated);
        Some((in_stitch.stitch, parts.collect()))
    }

    pub fn live(&self) -> impl Iterator<Item = Block> + '_ {
        self.live.iter().map(|(&address, block)| describe(address, block))
    }

    /// Whether a wait would let stitches be unmapped that cannot be now.
    pub fn wants_wait(&self, arena: &Arena) -> bool {
        let mut all = self.remembered.values();
        all.any(|stitch| stitch.used_until.is_some_and(|frees| !arena.is_past(frees)))
    }

    /// Whether no block and no work needs this stitch.
    pub fn can_leave(&self, arena: &Arena, number: u64) -> bool {
        let is_clean = |stitch: &Stitch| {
            let is_past = stitch.used_until.is_none_or(|frees| arena.is_past(frees));
            let mut parts = stitch.parts.iter();
            is_past || parts.all(|part| arena.is_range_clean(&(part.home..part.home + part.bytes)))
        };
        let stitch = self.remembered.get(&number);
        stitch.is_some_and(|stitch| stitch.holds == 0 && !stitch.leaves && is_clean(stitch))
    }

    /// The numbers of the stitches that serve nothing.
    pub fn broken(&self, arena: &Arena) -> BTreeSet<u64> {
        let broken = self.remembered.iter().filter(|(_, stitch)| !stitch.is_usable);
        let numbers = broken.map(|(&number, _)| number);
        numbers.filter(|&number| self.can_leave(arena, number)).collect()
    }

    /// The numbers of the stitches that have a part at `home`.
    pub fn with_part(&self, home: u64) -> impl Iterator<Item = u64> + '_ {
        let all = self.remembered.iter();
        let with = all.filter(move |(_, stitch)| stitch.parts.iter().any(|part| part.home == home));
        with.map(|(&number, _)| number)
    }

    /// Up to `most` stitches that were not used for longest and can leave.
    pub fn least_used(&self, arena: &Arena, most: usize) -> Vec<u64> {
        let can_leave = self
            .remembered
            .keys()
            .copied()
            .filter(|&number| self.can_leave(arena, number));
        let mut numbers: Vec<u64> = can_leave.collect();
        numbers.sort_by_key(|number| self.remembered[number].used_last);
        numbers.truncate(most);
        numbers
    }

    pub fn add_to(&self, held: &mut VirtualMemory) {
        for stitch in self.remembered.values() {
            let mut address = stitch.address;
            for part in &stitch.parts[..stitch.mapped] {
                held.mapped.push((address, part.bytes));
                address += part.bytes;
            }
        }
    }

    pub fn add_statistics(&self, statistics: &mut Statistics) {
        statistics.live_blocks += self.live.len();
        statistics.stitches = self.remembered.len();
        statistics.stitch_uses = self.uses;
    }
}

fn describe(address: u64, block: &InStitch) -> Block {
    Block {
        address,
        requested: block.requested,
        allocated: block.allocated,
    }
}
