//! What the pools of a device hold: their memory and the live blocks in it.

use super::Pools;
use base::sync::lock;
use policy::Block;

/// A contiguous range of memory, with its live blocks in the order of addresses.
pub struct Range {
    pub address: u64,
    pub size: u64,
    pub blocks: Vec<Block>,
}

impl Pools {
    /// The memory of a device's pools, segments side by side as one range. A stitch has no memory of its own: each live
    /// block in one is a range, and its bytes at home are in another range without a block.
    pub fn contents(&self, device: i16) -> Vec<Range> {
        let mut ranges = Vec::new();
        for root in self.of_device(device) {
            // All locks at the same time, as in `free_inside`, so that no slab changes hands meanwhile.
            let family: Vec<_> = root.family().map(|pool| (pool, lock(pool.policy.policy()))).collect();
            let mut blocks: Vec<Block> = Vec::new();
            for (pool, policy) in &family {
                let live = policy.as_deref().map(|policy| policy.live()).unwrap_or_default();
                blocks.extend(live.into_iter().filter(|block| !pool.has_lent(block.address)));
            }
            blocks.sort_by_key(|block| block.address);
            let segments = self.registry.segments_of(root);
            let mut segments: Vec<_> = segments
                .into_iter()
                .filter(|&(.., is_stitch)| !is_stitch)
                .map(|(address, size, _)| (address, size))
                .collect();
            segments.sort_unstable();
            ranges.extend(joined(&segments, blocks));
        }
        ranges
    }
}

/// Joins segments that lie side by side, and gives each its blocks. Both come in the order of addresses. A block in no
/// segment is a range of its own.
fn joined(segments: &[(u64, u64)], blocks: Vec<Block>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for &(address, size) in segments {
        match ranges.last_mut() {
            Some(last) if last.address + last.size == address => last.size += size,
            _ => ranges.push(Range {
                address,
                size,
                blocks: Vec::new(),
            }),
        }
    }
    let mut elsewhere = Vec::new();
    for block in blocks {
        let after = ranges.partition_point(|range| range.address <= block.address);
        let range = after.checked_sub(1).and_then(|index| ranges.get_mut(index));
        match range.filter(|range| block.address - range.address < range.size) {
            Some(range) => range.blocks.push(block),
            None => elsewhere.push(Range {
                address: block.address,
                size: block.allocated,
                blocks: vec![block],
            }),
        }
    }
    ranges.extend(elsewhere);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

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
