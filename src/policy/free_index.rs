//! Free blocks by size: best fit in a few steps, however many there are.
//!
//! Up to 1 MiB there is a list for each size in units of 512 bytes, and a bitmap of those that are not empty, so a block
//! is found, added and taken out without a search. Larger blocks, of which there are few, are kept in order of (size,
//! address): the lowest of the smallest that fit is the best fit.

use std::collections::BTreeSet;

use super::blocks::{Blocks, Id, NONE};

/// Sizes with a list of their own, in units.
const LISTED: usize = 2048;
const WORDS: usize = LISTED / 64;

/// (units, place, block)
type Large = (u32, u64, Id);

pub struct FreeIndex {
    /// What `Blocks` calls this index.
    name: u32,
    /// First block of each size, 1 unit first.
    heads: Box<[Id; LISTED]>,
    words: [u64; WORDS],
    /// Which of `words` are not zero.
    summary: u32,
    /// The largest block, as in `large`. What a segment has not yet been cut for is one block, in and out with every
    /// request that takes of it: this spares the tree of it.
    largest: Option<Large>,
    large: BTreeSet<Large>,
    count: usize,
}

impl FreeIndex {
    pub fn new(name: u32) -> Self {
        FreeIndex {
            name,
            heads: Box::new([NONE; LISTED]),
            words: [0; WORDS],
            summary: 0,
            largest: None,
            large: BTreeSet::new(),
            count: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn insert(&mut self, blocks: &mut Blocks, id: Id) {
        blocks.set_list(id, self.name);
        self.count += 1;
        let units = blocks.units(id);
        let slot = units as usize - 1;
        let Some(head) = self.heads.get_mut(slot) else {
            let this = (units, blocks.place(id), id);
            match self.largest {
                Some(largest) if this < largest => drop(self.large.insert(this)),
                largest => {
                    self.large.extend(largest);
                    self.largest = Some(this);
                }
            }
            return;
        };
        let first = std::mem::replace(head, id);
        if first != NONE {
            *blocks.list_links(first).0 = id;
        }
        let (prev, next) = blocks.list_links(id);
        (*prev, *next) = (NONE, first);
        self.words[slot / 64] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
    }

    pub fn remove(&mut self, blocks: &mut Blocks, id: Id) {
        blocks.set_list(id, super::blocks::NO_LIST);
        self.count -= 1;
        let units = blocks.units(id);
        let slot = units as usize - 1;
        if slot >= LISTED {
            let this = (units, blocks.place(id), id);
            if self.largest == Some(this) {
                self.largest = self.large.pop_last();
            } else {
                self.large.remove(&this);
            }
            return;
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
            self.words[slot / 64] &= !(1 << (slot % 64));
            if self.words[slot / 64] == 0 {
                self.summary &= !(1 << (slot / 64));
            }
        }
    }

    /// The smallest block of at least `units`.
    pub fn best(&self, units: u32) -> Option<Id> {
        let slot = units.max(1) as usize - 1;
        if slot < LISTED
            && let Some(found) = self.listed_from(slot)
        {
            return Some(self.heads[found]);
        }
        let next = (!self.large.is_empty())
            .then(|| self.large.range((units, 0, 0)..).next())
            .flatten();
        let found = next.or(self.largest.as_ref().filter(|&&(largest, ..)| largest >= units));
        found.map(|&(_, _, id)| id)
    }

    fn listed_from(&self, slot: usize) -> Option<usize> {
        let word = slot / 64;
        let here = self.words[word] & (u64::MAX << (slot % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let later = self.summary & u32::MAX.checked_shl(word as u32 + 1).unwrap_or(0);
        let word = (later != 0).then(|| later.trailing_zeros() as usize)?;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    pub fn largest(&self) -> Option<Id> {
        if let Some((_, _, id)) = self.largest {
            return Some(id);
        }
        let word = 31u32.checked_sub(self.summary.leading_zeros())? as usize;
        let slot = word * 64 + 63 - self.words[word].leading_zeros() as usize;
        Some(self.heads[slot])
    }

    /// Blocks of at least `least` units, largest first.
    pub fn descending<'a>(&'a self, blocks: &'a Blocks, least: u32) -> impl Iterator<Item = Id> + 'a {
        let largest = self.largest.iter().filter(move |&&(units, ..)| units >= least);
        let large = largest
            .chain(self.large.range((least, 0, 0)..).rev())
            .map(|&(_, _, id)| id);
        let lists = (least.max(1) as usize - 1..LISTED).rev().map(|slot| self.heads[slot]);
        let links = |id: Id| (id != NONE).then_some(id);
        let listed =
            lists.flat_map(move |head| std::iter::successors(links(head), move |&id| links(blocks.list_next(id))));
        large.chain(listed)
    }
}
