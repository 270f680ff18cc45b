//! A bounded table from keys of 128 bits to numbers, which many threads read and fill without a lock.
//!
//! An entry that has its value stays. A thread that finds an entry which another thread is filling does not wait: it goes on
//! as if the place held another key. So the same key can get two numbers, which costs a line in the file and nothing else.
//! That can also happen if a place becomes free again, because its value could not be made.

use std::sync::atomic::{AtomicU64, Ordering::*};

pub type Key = [u64; 2];

/// How many places are looked at for a key. If all are taken, the table counts as full.
const PROBES: usize = 64;

const EMPTY: u64 = 0;
/// A thread fills the entry.
const FILLING: u64 = 1;
/// The bit of an entry that is complete; the other bits are its value.
const COMPLETE: u64 = 1 << 63;

struct Entry {
    key: [AtomicU64; 2],
    value: AtomicU64,
}

pub struct Table(Box<[Entry]>);

fn hash(key: Key) -> u64 {
    let mut sum = key[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key[1].rotate_left(29);
    sum = (sum ^ sum >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    sum ^ sum >> 32
}

impl Table {
    /// A table with `entries` places, a power of two. Memory is used only for places that are looked at.
    pub fn new(entries: usize) -> Table {
        // SAFETY: an entry is made of atomic numbers, of which zero is a value.
        Table(unsafe { Box::new_zeroed_slice(entries.next_power_of_two()).assume_init() })
    }

    fn places(&self, key: Key) -> impl Iterator<Item = &Entry> {
        let mask = self.0.len() - 1;
        let first = hash(key) as usize;
        (0..PROBES).map(move |step| &self.0[first.wrapping_add(step) & mask])
    }

    #[inline]
    pub fn get(&self, key: Key) -> Option<u64> {
        for entry in self.places(key) {
            match entry.value.load(Acquire) {
                EMPTY => return None,
                FILLING => {}
                value if entry.has(key) => return Some(value & !COMPLETE),
                _ => {}
            }
        }
        None
    }

    /// The value of a key. If the table has none, `make` makes it, of 63 bits at most. A value that is an error is not kept.
    /// `None` if the table is full.
    #[cold]
    pub fn get_or_make(&self, key: Key, make: impl FnOnce() -> Result<u64, u64>) -> Option<u64> {
        for entry in self.places(key) {
            match entry.value.compare_exchange(EMPTY, FILLING, Acquire, Acquire) {
                Ok(_) => {
                    entry.key[0].store(key[0], Relaxed);
                    entry.key[1].store(key[1], Relaxed);
                    let made = make();
                    entry.value.store(made.map_or(EMPTY, |value| value | COMPLETE), Release);
                    let (Ok(value) | Err(value)) = made;
                    return Some(value & !COMPLETE);
                }
                Err(FILLING) => {}
                Err(value) if entry.has(key) => return Some(value & !COMPLETE),
                Err(_) => {}
            }
        }
        None
    }
}

impl Entry {
    fn has(&self, key: Key) -> bool {
        self.key[0].load(Relaxed) == key[0] && self.key[1].load(Relaxed) == key[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn threads_agree_on_values_and_a_full_table_says_so() {
        let table = Table::new(1 << 12);
        let made = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (table, made) = (&table, &made);
                scope.spawn(move || {
                    for step in 0..2000u64 {
                        let key = [(step * 7 + thread) % 1000, 3];
                        let make = || {
                            made.fetch_add(1, Relaxed);
                            Ok(key[0] * 2)
                        };
                        let value = table.get(key).or_else(|| table.get_or_make(key, make));
                        assert_eq!(value, Some(key[0] * 2));
                    }
                });
            }
        });
        assert!(made.load(Relaxed) >= 1000);
        let small = Table::new(64);
        let kept = (0..1000)
            .filter(|&key| small.get_or_make([key, 0], || Ok(key)).is_some())
            .count();
        assert_eq!(kept, 64);
        assert_eq!((small.get([0, 0]), small.get([999, 0])), (Some(0), None));
    }

    #[test]
    fn an_error_is_not_kept() {
        let table = Table::new(64);
        assert_eq!(table.get_or_make([1, 2], || Err(5)), Some(5));
        assert_eq!(table.get([1, 2]), None);
        assert_eq!(table.get_or_make([1, 2], || Ok(6)), Some(6));
        assert_eq!(table.get([1, 2]), Some(6));
    }
}
