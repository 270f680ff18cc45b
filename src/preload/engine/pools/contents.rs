//! What the pools of a device hold: their memory and the live blocks in it.

use std::ptr;

use super::Pools;
use policy::Block;

/// A contiguous range of memory, with its live blocks in the order of addresses.
pub struct Range {
    pub address: u64,
    pub size: u64,
    pub blocks: Vec<Block>,
}

impl Range {
    pub fn new(address: u64, size: u64, blocks: Vec<Block>) -> Range {
        Range { address, size, blocks }
    }
}

impl Pools {
    /// The memory of a device's pools, each byte once. Segments side by side are one range. The memory of a block in a
    /// stitch is where the block is, so it is left out of the range at its home.
    pub fn contents(&self, device: i16) -> Vec<Range> {
        let mut ranges = Vec::new();
        for root in self.of_device(device) {
            // All locks at the same time, as in `free_inside`, so that no slab changes hands meanwhile.
            let family: Vec<_> = root.family().map(|pool| (pool, pool.policy.policy.lock())).collect();
            let (stitches, homes): (Vec<_>, Vec<_>) = self
                .registry
                .segments_of(root)
                .into_iter()
                .partition(|&(.., is_stitch)| is_stitch);
            let homes = homes.into_iter().map(|(address, size, _)| (address, size));
            let is_in_stitch = |block: &Block| {
                let mut stitches = stitches.iter();
                stitches.any(|&(address, size, _)| block.address.wrapping_sub(address) < size)
            };
            let mut memory: Vec<(u64, u64)> = Vec::new();
            let mut blocks: Vec<Block> = Vec::new();
            for (pool, policy) in &family {
                let Some(policy) = policy.as_ref() else { continue };
                let live = policy.live();
                if ptr::eq(*pool, root) {
                    memory.extend(without(homes.clone().collect(), policy.stitched()));
                    let in_stitches = live.iter().filter(|block| is_in_stitch(block));
                    memory.extend(in_stitches.map(|block| (block.address, block.allocated)));
                }
                blocks.extend(live.into_iter().filter(|block| !pool.has_lent(block.address)));
            }
            blocks.sort_by_key(|block| block.address);
            memory.sort_unstable();
            ranges.extend(joined(&memory, blocks));
        }
        ranges
    }
}

/// What is left of these ranges without the `cuts`, each of which lies in one range.
fn without(mut ranges: Vec<(u64, u64)>, mut cuts: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    cuts.sort_unstable();
    let mut cuts = cuts.into_iter().peekable();
    let mut left = Vec::new();
    for (address, size) in ranges {
        let (mut at, end) = (address, address + size);
        while let Some((cut, bytes)) = cuts.next_if(|&(cut, _)| cut < end) {
            left.push((at, cut.saturating_sub(at)));
            at = at.max(cut + bytes);
        }
        left.push((at, end.saturating_sub(at)));
    }
    left.retain(|&(_, size)| size > 0);
    left
}

/// Joins segments that lie side by side, and gives each its blocks. Both come in the order of addresses. A block in no
/// segment is a range of its own.
fn joined(segments: &[(u64, u64)], blocks: Vec<Block>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for &(address, size) in segments {
        match ranges.last_mut() {
            Some(last) if last.address + last.size == address => last.size += size,
            _ => ranges.push(Range::new(address, size, Vec::new())),
        }
    }
    let mut elsewhere = Vec::new();
    for block in blocks {
        let after = ranges.partition_point(|range| range.address <= block.address);
        let range = after.checked_sub(1).and_then(|index| ranges.get_mut(index));
        match range.filter(|range| block.address - range.address < range.size) {
            Some(range) => range.blocks.push(block),
            None => elsewhere.push(Range::new(block.address, block.allocated, vec![block])),
        }
    }
    ranges.extend(elsewhere);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_stitches_is_left_out_of_its_home() {
        let ranges = vec![(0x8000, 0x1000), (0x1000, 0x1000), (0x2000, 0x1000)];
        let cuts = vec![(0x2800, 0x800), (0x1000, 0x200), (0x1400, 0x200), (0x8000, 0x1000)];
        let left = [(0x1200, 0x200), (0x1600, 0xa00), (0x2000, 0x800)];
        assert_eq!(without(ranges.clone(), cuts), left);
        assert_eq!(without(ranges, Vec::new()).len(), 3);
    }

    #[test]
    fn segments_side_by_side_are_one_range() {
        let block = |address| Block {
            address,
            requested: 1,
            allocated: 512,
        };
        let ranges = joined(
            &[(0x1000, 0x1000), (0x2000, 0x1000), (0x8000, 0x1000)],
            vec![block(0x1000), block(0x2800), block(0x8000), block(0xa000)],
        );
        let shape: Vec<_> = ranges
            .iter()
            .map(|range| (range.address, range.size, range.blocks.len()))
            .collect();
        assert_eq!(shape, [(0x1000, 0x2000, 2), (0x8000, 0x1000, 1), (0xa000, 512, 1)]);
    }
}
