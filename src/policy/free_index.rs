//! Free blocks by size. The cost of a best fit does not depend on how many there are.
//!
//! Blocks of up to 1 MiB are in one list for each size, in units of 512 bytes. A bitmap shows which lists are not
//! empty, so a block is found, added and removed without a search. Larger blocks are few; they are ordered by size and
//! place. The best fit is the smallest block that is long enough. Of several large ones of equal size, it is the one
//! with the lowest place.

use std::collections::BTreeSet;

use crate::blocks::{Blocks, Id, NO_LIST, NONE};

/// The largest size with a list of its own, in units: 1 MiB. A bitmap of 32 words then needs one word as a summary.
const LARGEST_LISTED_UNITS: usize = 2048;
const WORDS: usize = LARGEST_LISTED_UNITS / 64;

/// (units, place, block)
type Large = (u32, u64, Id);

pub struct FreeIndex {
    /// The number by which `Blocks` knows this list.
    number: u32,
    /// The first block of each size, beginning with the size of 1 unit.
    heads: Box<[Id; LARGEST_LISTED_UNITS]>,
    /// A bit for each list that is not empty.
    bitmap: [u64; WORDS],
    /// A bit for each word of `bitmap` that is not zero.
    summary: u32,
    /// The largest of the large blocks, which is not in `large`. The uncut rest of a segment is usually this block.
    /// Each request that it serves removes and inserts it, and this field spares the tree both.
    largest: Option<Large>,
    large: BTreeSet<Large>,
}

impl FreeIndex {
    pub fn new(number: u32) -> Self {
        FreeIndex {
            number,
            // Never on the stack: a pool is also made on threads with small ones.
            heads: vec![NONE; LARGEST_LISTED_UNITS]
                .try_into()
                .expect("a vector of this length"),
            bitmap: [0; WORDS],
            summary: 0,
            largest: None,
            large: BTreeSet::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.summary == 0 && self.largest.is_none()
    }

    pub fn insert(&mut self, blocks: &mut Blocks, id: Id) {
        blocks.set_list(id, self.number);
        let units = blocks[id].units;
        let slot = units as usize - 1;
        let Some(head) = self.heads.get_mut(slot) else {
            return self.insert_large((units, blocks.place(id), id));
        };
        let first = std::mem::replace(head, id);
        if first != NONE {
            *blocks.list_links(first).0 = id;
        }
        let (prev, next) = blocks.list_links(id);
        (*prev, *next) = (NONE, first);
        self.bitmap[slot / 64] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
    }

    pub fn remove(&mut self, blocks: &mut Blocks, id: Id) {
        blocks.set_list(id, NO_LIST);
        let units = blocks[id].units;
        let slot = units as usize - 1;
        if slot >= LARGEST_LISTED_UNITS {
            return self.remove_large((units, blocks.place(id), id));
        }
        let (prev, next) = blocks.list_links(id);
        let (prev, next) = (*prev, *next);
        if next != NONE {
            *blocks.list_links(next).0 = prev;
        }
        if prev != NONE {
            *blocks.list_links(prev).1 = next;
            return;
        }
        self.heads[slot] = next;
        if next == NONE {
            self.bitmap[slot / 64] &= !(1 << (slot % 64));
            if self.bitmap[slot / 64] == 0 {
                self.summary &= !(1 << (slot / 64));
            }
        }
    }

    fn insert_large(&mut self, this: Large) {
        match self.largest {
            None => self.largest = Some(this),
            Some(largest) => {
                self.large.insert(this.min(largest));
                self.largest = Some(this.max(largest));
            }
        }
    }

    fn remove_large(&mut self, this: Large) {
        if self.largest == Some(this) {
            self.largest = self.large.pop_last();
        } else {
            self.large.remove(&this);
        }
    }

    /// The smallest block of at least `units`.
    #[inline]
    pub fn best(&self, units: u32) -> Option<Id> {
        let slot = units.max(1) as usize - 1;
        if slot < LARGEST_LISTED_UNITS
            && let Some(found) = self.listed_from(slot)
        {
            return Some(self.heads[found]);
        }
        let next = if self.large.is_empty() {
            None
        } else {
            self.next_large(units)
        };
        let found = next.or(self.largest.filter(|&(largest, ..)| largest >= units));
        found.map(|(_, _, id)| id)
    }

    #[inline(never)]
    fn next_large(&self, units: u32) -> Option<Large> {
        self.large.range((units, 0, 0)..).next().copied()
    }

    /// Blocks of at least `units`, smallest first.
    pub fn ascending<'a>(&'a self, blocks: &'a Blocks, units: u32) -> impl Iterator<Item = Id> + 'a {
        let next_slot = move |slot: usize| (slot < LARGEST_LISTED_UNITS).then(|| self.listed_from(slot)).flatten();
        let slots = std::iter::successors(next_slot(units.max(1) as usize - 1), move |&slot| next_slot(slot + 1));
        let listed = slots.flat_map(move |slot| in_list(blocks, self.heads[slot]));
        let largest = self.largest.iter().filter(move |&&(largest, ..)| largest >= units);
        let large = self.large.range((units, 0, 0)..).chain(largest);
        listed.chain(large.map(|&(_, _, id)| id))
    }

    #[inline]
    fn listed_from(&self, slot: usize) -> Option<usize> {
        let word = slot / 64;
        let here = self.bitmap[word] & (u64::MAX << (slot % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let later = self.summary & u32::MAX.checked_shl(word as u32 + 1).unwrap_or(0);
        let word = (later != 0).then(|| later.trailing_zeros() as usize)?;
        Some(word * 64 + self.bitmap[word].trailing_zeros() as usize)
    }

    pub fn largest(&self) -> Option<Id> {
        if let Some((_, _, id)) = self.largest {
            return Some(id);
        }
        let word = 31u32.checked_sub(self.summary.leading_zeros())? as usize;
        let slot = word * 64 + 63 - self.bitmap[word].leading_zeros() as usize;
        Some(self.heads[slot])
    }

    /// Blocks of at least `least` units, largest first.
    pub fn descending<'a>(&'a self, blocks: &'a Blocks, least: u32) -> impl Iterator<Item = Id> + 'a {
        let largest = self.largest.iter().filter(move |&&(units, ..)| units >= least);
        let large = largest
            .chain(self.large.range((least, 0, 0)..).rev())
            .map(|&(_, _, id)| id);
        let slots = (least.max(1) as usize - 1..LARGEST_LISTED_UNITS).rev();
        let listed = slots.flat_map(move |slot| in_list(blocks, self.heads[slot]));
        large.chain(listed)
    }
}

/// The blocks of a list, from the first on.
fn in_list(blocks: &Blocks, first: Id) -> impl Iterator<Item = Id> {
    let some = |id: Id| (id != NONE).then_some(id);
    std::iter::successors(some(first), move |&id| some(blocks[id].list_next))
}
