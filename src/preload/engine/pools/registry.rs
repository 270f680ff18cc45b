//! Which pool serves a context, and which pool an address belongs to.
//!
//! `P` is the pool. A pool holds a reference to its registry, so the registry knows a pool by reference only.

use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::pages::{Page, Pages};
use base::sync::{read, write};

pub type Contexts<P> = HashMap<u64, &'static P>;
/// First address -> (bytes, pool, whether it is a stitch: a range in which memory of other segments is mapped again).
type Ranges<P> = BTreeMap<u64, Range<P>>;
type Range<P> = (u64, &'static P, bool);

/// A number that changes with every change of which pool serves which context. A forked child's numbers differ from those
/// of its parent.
static GENERATION: AtomicU64 = AtomicU64::new(1);

pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Makes all that threads remember about pools out of date. A forked child has pools of its own.
pub fn next_generation() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

pub struct Registry<P: 'static> {
    contexts: RwLock<Contexts<P>>,
    /// What the next layer granted, and stitches.
    segments: RwLock<Ranges<P>>,
    /// Segments whose addresses another pool was granted meanwhile. Their context is gone, which its pool learns soon.
    outlived: RwLock<Vec<(u64, Range<P>)>>,
    /// What is lent to subpools. An entry changes only while the parent pool is locked.
    slabs: RwLock<Ranges<P>>,
    pages: Pages<P>,
}

impl<P> Default for Registry<P> {
    fn default() -> Self {
        Registry {
            contexts: RwLock::default(),
            segments: RwLock::default(),
            outlived: RwLock::default(),
            slabs: RwLock::default(),
            pages: Pages::default(),
        }
    }
}

impl<P> Registry<P> {
    pub fn contexts(&self) -> RwLockReadGuard<'_, Contexts<P>> {
        read(&self.contexts)
    }

    pub fn contexts_mut(&self) -> RwLockWriteGuard<'_, Contexts<P>> {
        let contexts = write(&self.contexts);
        // Only under the lock: a thread that reads the new number then reads the new list.
        next_generation();
        contexts
    }

    /// `again`: it is a stitch.
    pub fn add_segment(&self, address: u64, size: u64, pool: &'static P, again: bool) {
        let mut segments = write(&self.segments);
        for (start, range) in pieces_in(&segments, address, size) {
            if !ptr::eq(range.1, pool) {
                segments.remove(&start);
                write(&self.outlived).push((start, range));
                // What its pool had lent there is gone, too.
                remove_range(&mut write(&self.slabs), start, range.0, |_| true);
            }
        }
        segments.insert(address, (size, pool, again));
        self.pages.set(address, size, |before, _| match before {
            Page::Unowned => Page::MaybeOf(pool),
            Page::MaybeOf(other) if ptr::eq(other, pool) => Page::MaybeOf(pool),
            _ => Page::Shared,
        });
    }

    /// The range is the pool's no longer. What another pool was granted there since stays.
    pub fn remove_segment(&self, address: u64, size: u64, pool: &'static P) {
        let mut segments = write(&self.segments);
        remove_range(&mut segments, address, size, |owner| ptr::eq(owner, pool));
        let is_in_range = |start: u64, bytes: u64| start >= address && start + bytes <= address + size;
        write(&self.outlived)
            .retain(|&(start, (bytes, owner, _))| !(ptr::eq(owner, pool) && is_in_range(start, bytes)));
        let slabs = read(&self.slabs);
        self.pages
            .set(address, size, |_, page| page_of(&segments, &slabs, page));
    }

    /// The segments of a pool: first address, bytes, and whether it is a stitch.
    pub fn segments_of(&self, pool: &'static P) -> Vec<(u64, u64, bool)> {
        let (segments, outlived) = (read(&self.segments), read(&self.outlived));
        let all = segments.iter().map(|(&address, &range)| (address, range));
        all.chain(outlived.iter().copied())
            .filter(|(_, (_, owner, _))| ptr::eq(*owner, pool))
            .map(|(address, (size, _, again))| (address, size, again))
            .collect()
    }

    /// Notes a slab that a pool lends to `subpool`.
    pub fn lend(&self, address: u64, size: u64, subpool: &'static P) {
        let segments = read(&self.segments);
        let mut slabs = write(&self.slabs);
        slabs.insert(address, (size, subpool, false));
        self.pages
            .set(address, size, |_, page| page_of(&segments, &slabs, page));
    }

    /// Notes that a slab, or part of one, belongs to the parent pool again.
    pub fn take_back(&self, address: u64, size: u64) {
        let segments = read(&self.segments);
        let mut slabs = write(&self.slabs);
        remove_range(&mut slabs, address, size, |_| true);
        self.pages
            .set(address, size, |_, page| page_of(&segments, &slabs, page));
    }

    /// The slabs of the subpools that `chosen` picks: first address, bytes, subpool.
    pub fn slabs_of(&self, chosen: impl Fn(&'static P) -> bool) -> Vec<(u64, u64, &'static P)> {
        let slabs = read(&self.slabs);
        let lent = slabs.iter().filter(|(_, (_, subpool, _))| chosen(subpool));
        lent.map(|(&address, &(size, subpool, _))| (address, size, subpool))
            .collect()
    }

    /// The only pool that `address` can belong to. Whether it does, the pool's policy knows.
    #[inline]
    pub fn possible_owner(&self, address: u64) -> Option<&'static P> {
        match self.pages.at(address) {
            Page::Unowned => None,
            Page::MaybeOf(pool) => Some(pool),
            Page::Shared => {
                // One lock at a time, because other functions take the two in the other order.
                let subpool = pool_at(&read(&self.slabs), address);
                subpool.or_else(|| pool_at(&read(&self.segments), address))
            }
        }
    }

    /// Whether `address`, which lies in memory of `parent`, lies in a slab. Certain while the parent is locked.
    pub fn is_lent(&self, parent: &'static P, address: u64) -> bool {
        let has_no_slab = |page: Page<P>| matches!(page, Page::MaybeOf(other) if ptr::eq(other, parent));
        !has_no_slab(self.pages.at(address)) && pool_at(&read(&self.slabs), address).is_some()
    }
}

/// Removes a range of the pools that `chosen` picks, whatever pieces it is in.
fn remove_range<P>(ranges: &mut Ranges<P>, address: u64, size: u64, chosen: impl Fn(&'static P) -> bool) {
    let end = address + size;
    for (start, (bytes, pool, again)) in pieces_in(ranges, address, size) {
        if !chosen(pool) {
            continue;
        }
        ranges.remove(&start);
        if start < address {
            ranges.insert(start, (address - start, pool, again));
        }
        if start + bytes > end {
            ranges.insert(end, (start + bytes - end, pool, again));
        }
    }
}

/// The entries that have a byte in a range.
fn pieces_in<P>(ranges: &Ranges<P>, address: u64, size: u64) -> Vec<(u64, Range<P>)> {
    ranges
        .range(..address + size)
        .rev()
        .take_while(|&(&start, &(bytes, ..))| start + bytes > address)
        .map(|(&start, &entry)| (start, entry))
        .collect()
}

fn pool_at<P>(ranges: &Ranges<P>, address: u64) -> Option<&'static P> {
    let (start, (size, pool, _)) = ranges.range(..=address).next_back()?;
    (address - start < *size).then_some(*pool)
}

/// The entry of the page that begins at `page`, made from the lists.
fn page_of<P>(segments: &Ranges<P>, slabs: &Ranges<P>, page: u64) -> Page<P> {
    let bytes = <Pages<P>>::PAGE_BYTES;
    let lent = pieces_in(slabs, page, bytes);
    let found = match lent.first() {
        None => pieces_in(segments, page, bytes),
        Some(&(start, (size, ..))) if start <= page && start + size >= page + bytes => lent,
        Some(_) => return Page::Shared,
    };
    match found.first() {
        None => Page::Unowned,
        Some(&(_, (_, first, _))) if found.iter().all(|(_, (_, pool, _))| ptr::eq(*pool, first)) => {
            Page::MaybeOf(first)
        }
        Some(_) => Page::Shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_borrower_of_its_slab_and_else_to_the_owner_of_its_segment() {
        const MIB: u64 = 1 << 20;
        static NAMES: [&str; 3] = ["parent", "borrower", "neighbour"];
        let [parent, borrower, neighbour] = NAMES.each_ref();
        let registry = Registry::<&str>::default();
        let owner = |address: u64| registry.possible_owner(address).copied();
        registry.add_segment(64 * MIB, 33 * MIB, parent, false);
        registry.add_segment(97 * MIB, MIB, neighbour, false);
        assert_eq!([owner(63 * MIB), owner(64 * MIB)], [None, Some("parent")]);
        assert_eq!([owner(96 * MIB), owner(97 * MIB)], [Some("parent"), Some("neighbour")]);
        registry.lend(66 * MIB, 4 * MIB, borrower);
        assert!(registry.is_lent(parent, 69 * MIB) && !registry.is_lent(parent, 70 * MIB));
        registry.take_back(68 * MIB, MIB);
        let owners = [66, 68, 69, 70].map(|mib| owner(mib * MIB));
        assert_eq!(
            owners,
            [Some("borrower"), Some("parent"), Some("borrower"), Some("parent")]
        );
        registry.take_back(66 * MIB, 4 * MIB);
        registry.remove_segment(64 * MIB, 33 * MIB, parent);
        assert_eq!([owner(66 * MIB), owner(97 * MIB)], [None, Some("neighbour")]);
        assert!(registry.slabs_of(|_| true).is_empty() && registry.segments_of(parent).is_empty());
    }

    /// The driver gives the addresses of a context that is gone to another one before the pool of the first learns that.
    #[test]
    fn what_another_pool_was_granted_meanwhile_stays() {
        const MIB: u64 = 1 << 20;
        static NAMES: [&str; 3] = ["gone", "borrower", "new"];
        let [gone, borrower, new] = NAMES.each_ref();
        let old = (64 * MIB, 16 * MIB);
        for (address, size) in [old, (64 * MIB, 4 * MIB), (70 * MIB, 4 * MIB), (60 * MIB, 8 * MIB)] {
            let registry = Registry::<&str>::default();
            let owner = |address: u64| registry.possible_owner(address).copied();
            registry.add_segment(old.0, old.1, gone, true);
            registry.lend(old.0, 12 * MIB, borrower);
            registry.add_segment(address, size, new, false);
            assert_eq!([owner(address), owner(address + size - 1)], [Some("new"); 2]);
            assert_eq!(
                registry.segments_of(gone),
                [(old.0, old.1, true)],
                "the bytes that are refunded"
            );
            assert_eq!(registry.segments_of(new), [(address, size, false)]);
            registry.remove_segment(old.0, old.1, gone);
            assert_eq!([owner(address), owner(address + size - 1)], [Some("new"); 2]);
            assert_eq!(registry.segments_of(new), [(address, size, false)]);
            assert!(registry.segments_of(gone).is_empty() && registry.slabs_of(|_| true).is_empty());
            registry.remove_segment(address, size, new);
            assert_eq!([owner(address), owner(old.0)], [None; 2]);
        }
    }
}
