//! Frees in flight: at most one free of an allocation runs at a time.
//!
//! A job that frees one allocation from two threads has a bug, and the driver answers the second free with an error. But
//! the thread that takes the entry out of the ledger must be the one whose free succeeds. Otherwise the thread whose free
//! failed would put the entry back although the memory is gone.
//!
//! A free begins under the ledger's lock. It mostly ends without: each free has a place of its own, and leaves it by one
//! store.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};

use super::allocation::Key;

/// How many frees have a place. Further ones go to a list, and end under the ledger's lock.
const PLACES: usize = 64;

/// Where one free is noted.
#[derive(Default)]
pub struct Place {
    value: AtomicU64,
    /// The kind of the key; 0 if no free is noted here.
    kind: AtomicU8,
}

impl Place {
    /// The free that is noted here has ended.
    pub fn leave(&self) {
        self.kind.store(0, Release);
    }
}

pub struct Places([Place; PLACES]);

impl Default for Places {
    fn default() -> Self {
        Places(std::array::from_fn(|_| Place::default()))
    }
}

/// The frees that run. A process has few at a time, so a list is searched faster than a table.
#[derive(Default)]
pub struct FreesInFlight {
    /// No free is noted in the places from here on.
    used: usize,
    without_place: Vec<Key>,
}

/// A free that has begun.
pub enum Begun<'a> {
    At(&'a Place),
    WithoutPlace,
}

impl FreesInFlight {
    /// Begins the free of an allocation; `None` if another thread frees it. The ledger's lock is held.
    #[inline]
    pub fn begin<'a>(&mut self, places: &'a Places, key: Key) -> Option<Begun<'a>> {
        let kind = key.kind();
        while self.used > 0 && places.0[self.used - 1].kind.load(Acquire) == 0 {
            self.used -= 1;
        }
        let mut empty = None;
        for place in &places.0[..self.used] {
            match place.kind.load(Acquire) {
                0 => empty = Some(place),
                other if other == kind && place.value.load(Relaxed) == key.value() => return None,
                _ => {}
            }
        }
        if !self.without_place.is_empty() && self.without_place.contains(&key) {
            return None;
        }
        let Some(place) = empty.or_else(|| places.0.get(self.used).inspect(|_| self.used += 1)) else {
            self.without_place.push(key);
            return Some(Begun::WithoutPlace);
        };
        place.value.store(key.value(), Relaxed);
        place.kind.store(kind, Relaxed);
        Some(Begun::At(place))
    }

    /// A free without a place has ended. The ledger's lock is held.
    #[cold]
    pub fn end_without_place(&mut self, key: Key) {
        if let Some(index) = self.without_place.iter().position(|&other| other == key) {
            self.without_place.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_keeps_others_of_its_allocation_out_with_a_place_and_without() {
        let (places, mut frees) = (Places::default(), FreesInFlight::default());
        let keys: Vec<Key> = (0..PLACES as u64 + 2).map(Key::Address).collect();
        let begun: Vec<_> = keys.iter().map(|&key| frees.begin(&places, key).unwrap()).collect();
        assert!(keys.iter().all(|&key| frees.begin(&places, key).is_none()));
        assert!(
            frees.begin(&places, Key::Object(0)).is_some(),
            "the same value of another kind"
        );
        for (key, begun) in keys.iter().zip(begun) {
            match begun {
                Begun::At(place) => place.leave(),
                Begun::WithoutPlace => frees.end_without_place(*key),
            }
            assert!(frees.begin(&places, *key).is_some());
            assert!(frees.begin(&places, *key).is_none());
        }
    }
}
