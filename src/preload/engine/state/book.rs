//! The table of live allocations. Its entries have half a cache line: if a job has many allocations, a look-up mostly
//! waits for memory.

use hashbrown::HashTable;

use super::allocation::{Allocation, Key};
use base::api::Class;

/// Which variant of `Key` a value belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Address,
    Registered,
    Range,
    Physical,
    Object,
}

#[repr(align(32))]
struct Entry {
    name: u64,
    requested: u64,
    allocated: u64,
    /// The number of the context in `Book::contexts`.
    context: u32,
    device: i16,
    kind: Kind,
    /// The class's number, and `TAKES_NOTHING`.
    class: u8,
}

const TAKES_NOTHING: u8 = 1 << 7;

const _: () = assert!(size_of::<Entry>() == 32 && Class::ALL.len() < TAKES_NOTHING as usize);

#[derive(Default)]
pub struct Book {
    entries: HashTable<Entry>,
    /// Every context that an allocation was made in. They are few, and the next allocation is mostly in the same one.
    contexts: Vec<u64>,
    last_context: u32,
}

impl Entry {
    fn is(&self, key: Key) -> bool {
        self.name == key.value() && self.kind == kind(key)
    }

    fn key(&self) -> Key {
        match self.kind {
            Kind::Address => Key::Address(self.name),
            Kind::Registered => Key::Registered(self.name),
            Kind::Range => Key::Range(self.name),
            Kind::Physical => Key::Physical(self.name),
            Kind::Object => Key::Object(self.name),
        }
    }
}

fn kind(key: Key) -> Kind {
    match key {
        Key::Address(_) => Kind::Address,
        Key::Registered(_) => Kind::Registered,
        Key::Range(_) => Kind::Range,
        Key::Physical(_) => Kind::Physical,
        Key::Object(_) => Kind::Object,
    }
}

/// Addresses and handles are already well spread above their alignment: one multiplication mixes them.
fn hash(name: u64) -> u64 {
    let mixed = name.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 32
}

impl Book {
    /// Returns the allocation that had this key before, if there was one.
    pub fn insert(&mut self, key: Key, allocation: Allocation) -> Option<Allocation> {
        let before = self.remove(key);
        let entry = Entry {
            name: key.value(),
            requested: allocation.requested,
            allocated: allocation.allocated,
            context: self.number_of(allocation.context),
            device: allocation.device,
            kind: kind(key),
            class: allocation.class.number() | if allocation.takes_nothing { TAKES_NOTHING } else { 0 },
        };
        self.entries
            .insert_unique(hash(entry.name), entry, |entry| hash(entry.name));
        before
    }

    pub fn remove(&mut self, key: Key) -> Option<Allocation> {
        let found = self.entries.find_entry(hash(key.value()), |entry| entry.is(key));
        let (entry, _) = found.ok()?.remove();
        Some(self.allocation(&entry))
    }

    pub fn get(&self, key: Key) -> Option<Allocation> {
        let entry = self.entries.find(hash(key.value()), |entry| entry.is(key))?;
        Some(self.allocation(entry))
    }

    pub fn each(&self) -> impl Iterator<Item = (Key, Allocation)> + '_ {
        self.entries.iter().map(|entry| (entry.key(), self.allocation(entry)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_entered_is_found_whole() {
        let mut book = Book::default();
        let keys = [Key::Address, Key::Registered, Key::Range, Key::Physical, Key::Object].map(|key| key(7));
        let classes = Class::ALL.iter().copied().cycle();
        let allocation = |(number, class): (u64, Class)| Allocation {
            class,
            device: number as i16 - 1,
            context: number / 2,
            requested: number,
            allocated: u64::MAX - number,
            takes_nothing: number % 2 == 0,
        };
        let all: Vec<_> = keys.into_iter().zip((0..).zip(classes).map(allocation)).collect();
        for (key, allocation) in &all {
            assert_eq!(book.insert(*key, *allocation), None);
        }
        for (key, allocation) in &all {
            assert_eq!(book.get(*key), Some(*allocation));
        }
        assert_eq!(book.each().count(), all.len());
        assert_eq!(book.insert(all[0].0, all[1].1), Some(all[0].1));
        assert_eq!(book.remove(all[0].0), Some(all[1].1));
        assert_eq!(book.get(all[0].0), None);
    }
}
