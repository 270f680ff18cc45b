//! Which ranges of addresses are taken by blocks, and whether a new block overlaps another.
//!
//! Most blocks begin where an earlier block began. So a *place* stays when its block goes: its start, and the room that
//! no other place reaches into. A block that fits into a place that is there needs one look into a hash table. Only a
//! new place is compared with its neighbours, in an ordered set.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

/// The journal contradicts itself: blocks overlap, or bytes lie outside every segment.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction;

/// So many places without a block are kept, however few blocks there are.
const FEW: usize = 4096;

struct Place {
    /// The addresses from the start that no other place has.
    room: u64,
    /// Bytes of the block; 0 if there is none.
    length: u64,
}

#[derive(Default)]
pub struct Blocks {
    places: HashMap<u64, Place, RandomState>,
    /// The starts of all places.
    starts: BTreeSet<u64>,
    /// The number of blocks.
    count: usize,
    bytes: u64,
}

impl Blocks {
    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a block begins at this address, or began there and nothing else took the address since.
    pub fn knows(&self, start: u64) -> bool {
        self.places.contains_key(&start)
    }

    /// Adds a block where a place has the room for it. `None` if there is no such place.
    #[inline]
    pub fn reuse(&mut self, start: u64, length: u64) -> Option<Result<(), Contradiction>> {
        let place = self.places.get_mut(&start)?;
        if place.length > 0 {
            return Some(Err(Contradiction));
        }
        if length > place.room {
            return None;
        }
        place.length = length;
        self.count += 1;
        self.bytes += length;
        Some(Ok(()))
    }

    /// Adds a block of at least one byte.
    pub fn occupy(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        if let Some(done) = self.reuse(start, length) {
            return done;
        }
        let end = start.checked_add(length).ok_or(Contradiction)?;
        if self.blocks_in(start, end).next().is_some() {
            return Err(Contradiction);
        }
        self.make_room(start, end);
        self.put(start, length, length);
        if self.starts.len() > 2 * self.count + FEW {
            self.forget_places();
        }
        Ok(())
    }

    /// Removes a range that is covered by blocks, mostly exactly one.
    #[inline]
    pub fn release(&mut self, start: u64, length: u64) -> Result<(), Contradiction> {
        if self.places.get(&start).is_some_and(|place| place.length == length) {
            self.remove(start);
            return Ok(());
        }
        let end = start.checked_add(length).ok_or(Contradiction)?;
        let mut covered = start;
        for (block, block_end) in self.blocks_in(start, end) {
            if block > covered {
                return Err(Contradiction);
            }
            covered = block_end;
        }
        if covered < end {
            return Err(Contradiction);
        }
        self.cut(start, end);
        Ok(())
    }

    /// Removes what blocks have in a range, and the places in it.
    pub fn cut(&mut self, start: u64, end: u64) {
        let blocks: Vec<_> = self.blocks_in(start, end).collect();
        for (block, block_end) in blocks {
            self.remove(block);
            if block < start {
                self.put(block, start - block, start - block);
            }
            if block_end > end {
                // The place before it ends where the range begins, see below.
                self.make_room(start, end);
                self.put(end, block_end - end, block_end - end);
            }
        }
        self.make_room(start, end);
    }

    /// All blocks, as start and length, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let places = self.places.iter().filter(|(_, place)| place.length > 0);
        places.map(|(&start, place)| (start, place.length))
    }

    /// Removes the block of a place, and keeps the place.
    fn remove(&mut self, start: u64) {
        let Some(place) = self.places.get_mut(&start) else {
            return;
        };
        let length = std::mem::take(&mut place.length);
        self.count -= 1;
        self.bytes -= length;
    }

    fn put(&mut self, start: u64, length: u64, room: u64) {
        self.places.insert(start, Place { room, length });
        self.starts.insert(start);
        self.count += 1;
        self.bytes += length;
    }

    /// The blocks that have an address in a range, which is not empty, as start and end, in the order of addresses.
    fn blocks_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let before = self.starts.range(..start).next_back();
        let starts = before.into_iter().chain(self.starts.range(start..end));
        let block = |start: &u64| {
            let length = self.places.get(start)?.length;
            (length > 0).then_some((*start, start + length))
        };
        starts.filter_map(block).filter(move |&(_, there)| there > start)
    }

    /// Takes a range without blocks from all places.
    fn make_room(&mut self, start: u64, end: u64) {
        if let Some(before) = self.starts.range(..start).next_back()
            && let Some(place) = self.places.get_mut(before)
        {
            place.room = place.room.min(start - before);
        }
        while let Some(&inside) = self.starts.range(start..end).next() {
            self.starts.remove(&inside);
            self.places.remove(&inside);
        }
    }

    fn forget_places(&mut self) {
        self.places.retain(|_, place| place.length > 0);
        let places = &self.places;
        self.starts.retain(|start| places.contains_key(start));
    }
}
