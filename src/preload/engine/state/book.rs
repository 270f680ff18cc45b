//! The table of live allocations. Its entries have half a cache line, and the place of an entry follows from its key
//! alone: if a job has many allocations, a look-up mostly waits for memory, once. `Expected` lets it wait earlier.
//!
//! The table has open addressing. An entry stands at its home, the place that its key hashes to, or behind it without a gap.
//! A list beside the table tells how far behind. The list is small enough for the processor's cache, and only entries whose
//! home is the right one are looked at.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::allocation::{Allocation, Key};
use base::api::Class;

/// One place of the table. All bytes are 0 if no entry stands there.
#[derive(Clone, Copy, Default)]
#[repr(align(32))]
struct Entry {
    name: u64,
    requested: u64,
    allocated: u64,
    /// The number of the context in `Book::contexts`.
    context: u32,
    device: i16,
    /// See `Key::kind`.
    kind: u8,
    /// The class's number, and `TAKES_NOTHING`.
    class: u8,
}

const TAKES_NOTHING: u8 = 1 << 7;

const _: () = assert!(size_of::<Entry>() == 32 && Class::ALL.len() < TAKES_NOTHING as usize);

/// The places of the first table. Later tables double.
const FIRST_PLACES: usize = 64;
/// The mark of an entry that stands so far behind its home that the mark does not tell how far.
const FAR: u8 = u8::MAX;

/// The mark of an entry that stands so many places behind its home.
fn mark(distance: usize) -> u8 {
    u8::try_from(distance + 1).unwrap_or(FAR)
}

#[derive(Default)]
pub struct Book {
    /// As many as a power of two; at most four fifths of them are taken.
    places: Box<[Entry]>,
    /// The mark of the entry at each place: how far behind its home it stands, plus 1. 0 if no entry stands there.
    marks: Box<[u8]>,
    taken: usize,
    /// Every context that an allocation was made in. They are few, and the next allocation is mostly in the same one.
    contexts: Vec<u64>,
    last_context: u32,
}

impl Entry {
    fn is(&self, key: Key) -> bool {
        self.name == key.value() && self.kind == key.kind()
    }

    /// `None` if no entry stands here.
    fn key(&self) -> Option<Key> {
        Key::of_kind(self.kind, self.name)
    }
}

/// The place among `count` that a name hashes to. The upper bits of the product depend on all bits of the name.
#[inline]
fn home(name: u64, count: usize) -> usize {
    let hash = name.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((u128::from(hash) * count as u128) >> 64) as usize
}

impl Book {
    /// Returns the allocation that had this key before, if there was one.
    pub fn insert(&mut self, key: Key, allocation: Allocation) -> Option<Allocation> {
        if self.taken * 5 >= self.places.len() * 4 {
            self.grow();
        }
        let entry = Entry {
            name: key.value(),
            requested: allocation.requested,
            allocated: allocation.allocated,
            context: self.number_of(allocation.context),
            device: allocation.device,
            kind: key.kind(),
            class: allocation.class.number() | if allocation.takes_nothing { TAKES_NOTHING } else { 0 },
        };
        match self.search(key) {
            Ok(place) => {
                let before = std::mem::replace(&mut self.places[place], entry);
                Some(self.allocation(&before))
            }
            Err((place, mark)) => {
                self.places[place] = entry;
                self.marks[place] = mark;
                self.taken += 1;
                None
            }
        }
    }

    pub fn remove(&mut self, key: Key) -> Option<Allocation> {
        let found = self.search(key).ok()?;
        let allocation = self.allocation(&self.places[found]);
        // What stands behind the gap moves into it, unless that is before its home.
        let last = self.places.len() - 1;
        let (mut gap, mut next) = (found, found);
        loop {
            next = (next + 1) & last;
            let distance = match self.marks[next] {
                0 => break,
                FAR => next.wrapping_sub(home(self.places[next].name, self.places.len())) & last,
                mark => usize::from(mark) - 1,
            };
            let moves = next.wrapping_sub(gap) & last;
            if distance >= moves {
                self.places[gap] = self.places[next];
                self.marks[gap] = mark(distance - moves);
                gap = next;
            }
        }
        self.places[gap] = Entry::default();
        self.marks[gap] = 0;
        self.taken -= 1;
        Some(allocation)
    }

    pub fn get(&self, key: Key) -> Option<Allocation> {
        Some(self.allocation(&self.places[self.search(key).ok()?]))
    }

    pub fn each(&self) -> impl Iterator<Item = (Key, Allocation)> + '_ {
        let known = |entry: &Entry| Some((entry.key()?, self.allocation(entry)));
        self.places.iter().filter_map(known)
    }

    /// Where the entry of this key stands. If there is none: where it would stand, and the mark that it would have.
    #[inline]
    fn search(&self, key: Key) -> Result<usize, (usize, u8)> {
        if self.places.is_empty() {
            return Err((0, 0));
        }
        let last = self.places.len() - 1;
        let (mut place, mut distance) = (home(key.value(), self.places.len()), 0);
        // Not all places are taken.
        loop {
            match self.marks[place] {
                0 => return Err((place, mark(distance))),
                there if there == mark(distance) && self.places[place].is(key) => return Ok(place),
                _ => {}
            }
            place = (place + 1) & last;
            distance += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let count = (self.places.len() * 2).max(FIRST_PLACES);
        // SAFETY: a place of zeros is a valid one. So the kernel's fresh pages need not be written.
        let places = unsafe { Box::<[Entry]>::new_zeroed_slice(count).assume_init() };
        let before = std::mem::replace(&mut self.places, places);
        self.marks = vec![0; count].into();
        for entry in before {
            if let Some(Err((place, mark))) = entry.key().map(|key| self.search(key)) {
                self.places[place] = entry;
                self.marks[place] = mark;
            }
        }
    }

    fn allocation(&self, entry: &Entry) -> Allocation {
        let class = Class::from_number(entry.class & !TAKES_NOTHING);
        Allocation {
            class: class.unwrap_or(Class::Linear),
            device: entry.device,
            context: self.contexts[entry.context as usize],
            requested: entry.requested,
            allocated: entry.allocated,
            takes_nothing: entry.class & TAKES_NOTHING != 0,
        }
    }

    fn number_of(&mut self, context: u64) -> u32 {
        if self.contexts.get(self.last_context as usize) != Some(&context) {
            let known = self.contexts.iter().position(|&other| other == context);
            self.last_context = known.unwrap_or_else(|| {
                self.contexts.push(context);
                self.contexts.len() - 1
            }) as u32;
        }
        self.last_context
    }
}

/// Where a book's table is, for threads that do not hold its lock. They only ask the processor to load a place.
#[derive(Default)]
pub struct Expected {
    first: AtomicUsize,
    count: AtomicU32,
}

impl Expected {
    /// The book's table may have grown. The book's lock is held.
    #[inline]
    pub fn follow(&self, book: &Book) {
        let first = book.places.as_ptr().addr();
        if self.first.load(Relaxed) != first {
            self.first.store(first, Relaxed);
            self.count.store(u32::try_from(book.places.len()).unwrap_or(0), Relaxed);
        }
    }

    /// The entry of this key will soon be asked for or entered: its place is loaded into the processor's cache.
    #[inline]
    pub fn prefetch(&self, key: Key) {
        let count = self.count.load(Relaxed) as usize;
        let place = self.first.load(Relaxed) + home(key.value(), count) * size_of::<Entry>();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction is a hint. It reads nothing, and does not fault whatever the address is.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(place));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Every field tells the number.
    fn allocation(number: u64) -> Allocation {
        Allocation {
            class: Class::ALL[number as usize % Class::ALL.len()],
            device: number as i16 - 1,
            context: number / 2,
            requested: number,
            allocated: u64::MAX - number,
            takes_nothing: number.is_multiple_of(2),
        }
    }

    /// A name that hashes to the last place of every table, if the number is small. The factor is the inverse of that of
    /// `home`, so the hash is `u64::MAX - number`.
    fn name_of_last_place(number: u64) -> u64 {
        (u64::MAX - number).wrapping_mul(0xF1DE_83E1_9937_733D)
    }

    #[test]
    fn entries_farther_behind_their_home_than_a_mark_tells_are_found_and_move_up() {
        let mut book = Book::default();
        let keys: Vec<_> = (0..600)
            .map(|number| Key::Address(name_of_last_place(number)))
            .collect();
        for (number, key) in (0..).zip(&keys) {
            assert_eq!(book.insert(*key, allocation(number)), None);
        }
        for (number, key) in (0..).zip(&keys).step_by(3) {
            assert_eq!(book.remove(*key), Some(allocation(number)));
        }
        for (number, key) in (0..).zip(&keys) {
            let expected = (number % 3 != 0).then(|| allocation(number));
            assert_eq!(book.get(*key), expected);
        }
    }

    proptest! {
        /// Few names, so that many stand beside each other, across the end of the table too.
        #[test]
        fn a_book_is_a_map(steps in prop::collection::vec((0..300u64, 0..5usize, any::<bool>()), 1..2000)) {
            let (mut book, mut map) = (Book::default(), HashMap::new());
            for (number, (name, kind, enters)) in (0..).zip(steps) {
                let name = if name < 200 { name << 9 } else { name_of_last_place(name) };
                let kinds = [Key::Address, Key::Registered, Key::Range, Key::Physical, Key::Object];
                let key = kinds[kind](name);
                if enters {
                    prop_assert_eq!(book.insert(key, allocation(number)), map.insert(key, allocation(number)));
                } else {
                    prop_assert_eq!(book.remove(key), map.remove(&key));
                }
                prop_assert_eq!(book.get(key), map.get(&key).copied());
            }
            prop_assert_eq!(book.each().collect::<HashMap<_, _>>(), map);
        }
    }
}
