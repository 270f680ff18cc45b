//! Blocks whose free has not returned.
//!
//! In the policy's books such a block is free at once, and clean when the work that may use it is done. To the job it is an
//! allocation until `cuMemFree` returns: the driver answers questions of other threads about it meanwhile.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::mutant;
use policy::Block;

/// How many blocks are known at a time. Questions about further ones are answered as about free memory.
const PLACES: usize = 64;

#[derive(Default)]
struct Place {
    /// 0: no block is noted here.
    address: AtomicU64,
    bytes: AtomicU64,
}

pub struct Leaving {
    places: [Place; PLACES],
    /// No block was ever noted in the places from here on.
    used: AtomicUsize,
}

impl Default for Leaving {
    fn default() -> Self {
        Leaving {
            places: std::array::from_fn(|_| Place::default()),
            used: AtomicUsize::new(0),
        }
    }
}

/// The free of a block has not returned until this is dropped.
pub struct UntilReturned(Option<&'static Place>);

impl Drop for UntilReturned {
    fn drop(&mut self) {
        // Mutant 8: a stale answer.
        if let Some(place) = self.0.filter(|_| !mutant::is(8)) {
            place.address.store(0, Ordering::Release);
        }
    }
}

impl Leaving {
    /// Notes a block that is freed now. The caller holds the lock of the pool's policy. So only one thread at a time notes a
    /// block, and a thread that finds the block free in the policy's books finds it here.
    pub fn note(&'static self, block: &Block) -> UntilReturned {
        let used = self.used.load(Ordering::Relaxed);
        let is_empty = |place: &&Place| place.address.load(Ordering::Acquire) == 0;
        let place = self.places[..used].iter().find(is_empty).or_else(|| {
            let next = self.places.get(used)?;
            self.used.store(used + 1, Ordering::Release);
            Some(next)
        });
        if let Some(place) = place {
            place.bytes.store(block.requested, Ordering::Relaxed);
            place.address.store(block.address, Ordering::Release);
        }
        UntilReturned(place)
    }

    /// The block that holds `address`: first address and bytes.
    pub fn at(&self, address: u64) -> Option<(u64, u64)> {
        let used = self.used.load(Ordering::Acquire);
        self.places[..used].iter().find_map(|place| {
            let first = place.address.load(Ordering::Acquire);
            let bytes = place.bytes.load(Ordering::Acquire);
            // Otherwise the bytes may be those of another block.
            let is_same = place.address.load(Ordering::Acquire) == first;
            (first != 0 && is_same && address.wrapping_sub(first) < bytes).then_some((first, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_until_its_free_returns() {
        let leaving: &'static Leaving = Box::leak(Box::default());
        let block = |number: u64| Block {
            address: number << 12,
            requested: 100,
            allocated: 512,
        };
        let one = leaving.note(&block(1));
        let others: Vec<_> = (2..=PLACES as u64).map(|number| leaving.note(&block(number))).collect();
        assert_eq!(leaving.at(0x1063), Some((0x1000, 100)));
        assert_eq!((leaving.at(0x1064), leaving.at(0xfff)), (None, None));
        let without_place = leaving.note(&block(1000));
        assert_eq!(leaving.at(1000 << 12), None);
        drop((one, without_place));
        assert_eq!((leaving.at(0x1000), leaving.at(0x2000)), (None, Some((0x2000, 100))));
        let again = leaving.note(&block(1000));
        assert_eq!(leaving.at(1000 << 12), Some((1000 << 12, 100)));
        drop((again, others));
        assert_eq!(leaving.at(0x2000), None);
    }
}
