//! Segments of a device that the model of an allocator divides into blocks. Neighbours that are free are one block, but
//! never across two segments.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Names a pool of free blocks: the stream, and whether the pool serves small requests.
pub type PoolName = (u64, bool);

#[derive(Clone, Copy)]
pub struct Block {
    pub size: u64,
    /// First address of the block's segment.
    segment: u64,
    pub pool: PoolName,
    free: bool,
}

/// Which end of a free block a request gets.
pub enum End {
    Head,
    Tail,
}

#[derive(Default)]
pub struct Blocks {
    by_address: BTreeMap<u64, Block>,
    /// The free blocks of each pool: (size, address).
    free: HashMap<PoolName, BTreeSet<(u64, u64)>>,
    /// The segments: first address -> bytes.
    segments: BTreeMap<u64, u64>,
}

impl Blocks {
    /// Whether there is no segment.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The segments by address: first address and bytes.
    pub fn segments(&self) -> Vec<(u64, u64)> {
        self.segments.iter().map(|(&start, &size)| (start, size)).collect()
    }

    /// Makes a segment `more` bytes longer at its end, or adds it.
    pub fn extend(&mut self, start: u64, more: u64, pool: PoolName) {
        let size = self.segments.entry(start).or_default();
        let end = start + *size;
        *size += more;
        let (at, have) = self
            .free_end(start, end)
            .map_or((end, 0), |(at, block)| (at, block.size));
        self.remove_free(at);
        self.add_free(at, have + more, start, pool);
    }

    /// The free block at the end of a segment, which ends at `end`.
    pub fn free_end(&self, start: u64, end: u64) -> Option<(u64, Block)> {
        let (&at, &block) = self.by_address.range(start..end).next_back()?;
        block.free.then_some((at, block))
    }

    /// Removes what is behind `keep` bytes of a segment, where all is free.
    pub fn cut(&mut self, start: u64, keep: u64) {
        let Some(size) = self.segments.insert(start, keep) else {
            return;
        };
        if let Some((at, block)) = self.free_end(start, start + size) {
            self.remove_free(at);
            if start + keep > at {
                self.add_free(at, start + keep - at, start, block.pool);
            }
        }
    }

    /// Removes the segments that are free as a whole. Returns their first addresses.
    pub fn take_idle(&mut self) -> Vec<u64> {
        let is_idle = |&(start, size): &(u64, u64)| {
            let block = self.by_address.get(&start);
            block.is_some_and(|block| block.free && block.size == size)
        };
        let idle: Vec<(u64, u64)> = self.segments().into_iter().filter(is_idle).collect();
        for &(start, _) in &idle {
            self.remove_free(start);
            self.segments.remove(&start);
        }
        idle.into_iter().map(|(start, _)| start).collect()
    }

    fn add_free(&mut self, address: u64, size: u64, segment: u64, pool: PoolName) {
        let block = Block {
            size,
            segment,
            pool,
            free: true,
        };
        self.by_address.insert(address, block);
        self.free.entry(pool).or_default().insert((size, address));
    }

    fn remove_free(&mut self, address: u64) -> Option<Block> {
        let block = *self.by_address.get(&address).filter(|block| block.free)?;
        self.by_address.remove(&address);
        self.free.get_mut(&block.pool)?.remove(&(block.size, address));
        Some(block)
    }

    /// Whether a free block of the pool has `size` bytes.
    pub fn fits(&self, size: u64, pool: PoolName) -> bool {
        let free = self.free.get(&pool);
        free.is_some_and(|free| free.range((size, 0)..).next().is_some())
    }

    /// Takes `size` bytes from one end of the best fitting free block of the pool, by size, then address: or the whole
    /// block, if `split` says that so many bytes are not worth a block. Returns the address.
    pub fn take(&mut self, size: u64, pool: PoolName, end: End, split: impl Fn(u64) -> bool) -> Option<u64> {
        let (_, found) = self.free.get(&pool)?.range((size, 0)..).next().copied()?;
        let block = self.remove_free(found)?;
        let rest = block.size - size;
        let (mut at, mut taken) = (found, block.size);
        if rest > 0 && split(rest) {
            let rest_at;
            (at, rest_at) = match end {
                End::Head => (found, found + size),
                End::Tail => (found + rest, found),
            };
            taken = size;
            self.add_free(rest_at, rest, block.segment, pool);
        }
        let live = Block {
            size: taken,
            free: false,
            ..block
        };
        self.by_address.insert(at, live);
        Some(at)
    }

    /// Frees a block, and joins it with its free neighbours.
    pub fn put_back(&mut self, address: u64) {
        let Some(block) = self.by_address.remove(&address) else {
            return;
        };
        let (mut start, mut size) = (address, block.size);
        let joins = |other: &Block| other.free && other.segment == block.segment;
        if self.by_address.get(&(start + size)).is_some_and(joins)
            && let Some(right) = self.remove_free(start + size)
        {
            size += right.size;
        }
        let before = self.by_address.range(..start).next_back();
        if let Some((&at, left)) = before
            && joins(left)
            && at + left.size == start
            && let Some(left) = self.remove_free(at)
        {
            start = at;
            size += left.size;
        }
        self.add_free(start, size, block.segment, block.pool);
    }
}
