//! Segments of a device that the model of an allocator divides into blocks. Neighbours in the same state, free or without
//! memory, are one block, but never across two segments.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Names a pool of free blocks: the stream, and whether the pool serves small requests.
pub type PoolName = (u64, bool);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    Live,
    Free,
    /// Addresses without memory, in an expandable segment.
    Unmapped,
}

#[derive(Clone, Copy)]
pub struct Block {
    pub size: u64,
    /// First address of the block's segment.
    pub segment: u64,
    pub pool: PoolName,
    pub state: State,
    /// Of two free blocks of one size, the lower number serves a request first.
    number: u64,
}

/// Which end of a free block a request gets.
pub enum End {
    Head,
    Tail,
}

#[derive(Default)]
pub struct Blocks {
    by_address: BTreeMap<u64, Block>,
    /// The free blocks of each pool: (size, number, address).
    free: HashMap<PoolName, BTreeSet<(u64, u64, u64)>>,
    /// The addresses of each pool's blocks without memory.
    unmapped: HashMap<PoolName, BTreeSet<u64>>,
    /// The segments: first address -> bytes.
    segments: BTreeMap<u64, u64>,
    /// Of two blocks of one size, the one that was made first serves a request, and not the one of the lower address.
    by_age: bool,
    made: u64,
}

impl Blocks {
    /// Blocks of which the oldest of a size serves a request first, as in PyTorch 2.12. By default it is the lowest.
    pub fn by_age() -> Blocks {
        Blocks {
            by_age: true,
            ..Blocks::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub fn at(&self, address: u64) -> Option<Block> {
        self.by_address.get(&address).copied()
    }

    /// Adds a segment that is one block.
    pub fn add_segment(&mut self, segment: u64, size: u64, pool: PoolName, state: State) {
        self.segments.insert(segment, size);
        let number = self.number();
        let block = Block {
            size,
            segment,
            pool,
            state,
            number,
        };
        self.add(segment, block);
    }

    /// The segments that are free as a whole: pool, size, first address.
    pub fn idle(&self) -> Vec<(PoolName, u64, u64)> {
        let is_whole = |(&start, &size): (&u64, &u64)| {
            let block = self.at(start)?;
            (block.state == State::Free && block.size == size).then_some((block.pool, size, start))
        };
        self.segments.iter().filter_map(is_whole).collect()
    }

    /// Removes a segment that is one block.
    pub fn remove_segment(&mut self, start: u64) {
        self.remove(start);
        self.segments.remove(&start);
    }

    /// Removes a segment if it has no memory at all. Returns its bytes.
    pub fn remove_unmapped(&mut self, start: u64) -> Option<u64> {
        let size = *self.segments.get(&start)?;
        let block = self.at(start)?;
        (block.state == State::Unmapped && block.size == size).then(|| self.remove_segment(start))?;
        Some(size)
    }

    fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// Changes the state of `size` bytes from `address` on, which lie in one block that is not live.
    pub fn change(&mut self, address: u64, size: u64, state: State) {
        let around = self.by_address.range(..=address).next_back();
        let Some((&start, &block)) = around.filter(|(_, block)| block.state != State::Live) else {
            return;
        };
        self.remove(start);
        let end = address + size;
        for (from, to) in [(start, address), (end, start + block.size)] {
            if to > from {
                let (size, number) = (to - from, self.number());
                self.add(from, Block { size, number, ..block });
            }
        }
        self.add(address, Block { size, state, ..block });
    }

    /// Adds a block, and joins it with its neighbours in the same state. They take its number.
    fn add(&mut self, mut address: u64, mut block: Block) {
        if block.state != State::Live {
            let joins = |other: &Block| other.state == block.state && other.segment == block.segment;
            let right = address + block.size;
            if self.by_address.get(&right).is_some_and(joins)
                && let Some(right) = self.remove(right)
            {
                block.size += right.size;
            }
            let left = self.by_address.range(..address).next_back();
            if let Some((&at, left)) = left
                && joins(left)
                && at + left.size == address
            {
                block.size += left.size;
                address = at;
                self.remove(at);
            }
        }
        if !self.by_age {
            block.number = address;
        }
        let key = (block.size, block.number, address);
        match block.state {
            State::Live => false,
            State::Free => self.free.entry(block.pool).or_default().insert(key),
            State::Unmapped => self.unmapped.entry(block.pool).or_default().insert(address),
        };
        self.by_address.insert(address, block);
    }

    fn remove(&mut self, address: u64) -> Option<Block> {
        let block = self.by_address.remove(&address)?;
        match block.state {
            State::Live => false,
            State::Free => self
                .free
                .get_mut(&block.pool)?
                .remove(&(block.size, block.number, address)),
            State::Unmapped => self.unmapped.get_mut(&block.pool)?.remove(&address),
        };
        Some(block)
    }

    /// The size and address of the best fitting free block of the pool, by size, then number. A block that can grow counts with the addresses behind
    /// it that have no memory, as long as a larger block reaches less far.
    pub fn fitting(&self, size: u64, pool: PoolName) -> Option<(u64, u64)> {
        let reach = |&(size, _, at): &(u64, u64, u64)| match self.at(at + size) {
            Some(next) if next.state == State::Unmapped => size + next.size,
            _ => size,
        };
        let mut fitting = self.free.get(&pool)?.range((size, 0, 0)..);
        let mut best = fitting.next()?;
        for next in fitting {
            if reach(next) >= reach(best) {
                break;
            }
            best = next;
        }
        Some((best.0, best.2))
    }

    /// The lowest address of the pool at which `size` bytes are free or without memory, but not all of them free.
    pub fn growable(&self, size: u64, pool: PoolName) -> Option<u64> {
        let grows = |&at: &u64| {
            let segment = self.at(at)?.segment;
            let before = self.by_address.range(..at).next_back();
            let is_free = |(_, block): &(&u64, &Block)| block.segment == segment && block.state == State::Free;
            let start = before.filter(is_free).map_or(at, |(&at, _)| at);
            let mut room = 0;
            self.by_address
                .range(start..)
                .take_while(|(_, block)| block.segment == segment && block.state != State::Live)
                .any(|(_, block)| {
                    room += block.size;
                    room >= size
                })
                .then_some(start)
        };
        self.unmapped.get(&pool)?.iter().find_map(grows)
    }

    /// The free blocks: pool, size, address.
    pub fn all_free(&self) -> Vec<(PoolName, u64, u64)> {
        let of_pool = |(&pool, free): (&PoolName, &BTreeSet<(u64, u64, u64)>)| {
            let free: Vec<_> = free.iter().map(|&(size, _, at)| (pool, size, at)).collect();
            free
        };
        self.free.iter().flat_map(of_pool).collect()
    }

    /// Takes `size` bytes from one end of the free block at an address, or the whole block, if `split` says that so many bytes
    /// are not worth a block. Returns the address.
    pub fn take(&mut self, found: u64, size: u64, end: End, split: impl Fn(u64) -> bool) -> Option<u64> {
        let block = self.remove(found)?;
        let rest = block.size - size;
        let state = State::Live;
        if rest == 0 || !split(rest) {
            self.add(found, Block { state, ..block });
            return Some(found);
        }
        let (at, rest_at) = match end {
            End::Head => (found, found + size),
            End::Tail => (found + rest, found),
        };
        self.add(rest_at, Block { size: rest, ..block });
        let number = self.number();
        let live = Block {
            size,
            state,
            number,
            ..block
        };
        self.add(at, live);
        Some(at)
    }

    /// Frees a block.
    pub fn put_back(&mut self, address: u64) {
        if let Some(block) = self.remove(address) {
            let state = State::Free;
            self.add(address, Block { state, ..block });
        }
    }
}
