//! Who asks for memory: of each device, and of the host, the bytes that each stack asked for since the last look. So the
//! mark of a surge names the stacks that are responsible. It is kept only if surges are watched and stacks recorded.
//!
//! A request costs a load and an atomic change. The table has `SLOTS` places for the stacks of a device. Two stacks with the
//! same place share it: the one that asked for more stays.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::cuda::MAX_DEVICES;

const SLOTS: usize = 256;
/// How often an entry is tried that other threads change.
const TRIES: usize = 64;

/// Each entry has KiB in its upper half and the number of the stack in its lower half; 0 is none.
pub struct Askers(Box<[[AtomicU64; SLOTS]]>);

fn entry(stack: u32, kib: u64) -> u64 {
    kib.min(u64::from(u32::MAX)) << 32 | u64::from(stack)
}

impl Askers {
    pub fn new() -> Askers {
        let devices = (0..=MAX_DEVICES).map(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        Askers(devices.collect())
    }

    fn slots(&self, device: i16) -> &[AtomicU64; SLOTS] {
        &self.0[usize::try_from(device).map_or(MAX_DEVICES, |device| device.min(MAX_DEVICES))]
    }

    /// The stack asked for memory of this device, or of the host.
    #[inline]
    pub fn add(&self, device: i16, stack: u32, bytes: u64) {
        let slot = &self.slots(device)[stack as usize % SLOTS];
        let kib = bytes.div_ceil(1024);
        for _ in 0..TRIES {
            let known = slot.load(Relaxed);
            let (of, held) = (known as u32, known >> 32);
            let now = if of == stack {
                entry(stack, held.saturating_add(kib))
            } else if kib > held {
                entry(stack, kib)
            } else {
                return;
            };
            if slot.compare_exchange_weak(known, now, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// The `most` stacks that asked for most since the last call, with bytes rounded up to KiB, largest first.
    pub fn take(&self, device: i16, most: usize) -> Vec<(u32, u64)> {
        let taken = self.slots(device).iter().filter(|slot| slot.load(Relaxed) != 0);
        let taken = taken.map(|slot| slot.swap(0, Relaxed));
        largest(taken.map(|known| (known as u32, (known >> 32) << 10)), most)
    }
}

/// The `most` stacks with most bytes, largest first.
pub fn largest(asked: impl Iterator<Item = (u32, u64)>, most: usize) -> Vec<(u32, u64)> {
    let mut asked: Vec<(u32, u64)> = asked.collect();
    asked.sort_unstable_by_key(|&(stack, bytes)| (Reverse(bytes), stack));
    asked.truncate(most);
    asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::cuda::HOST_DEVICE;

    #[test]
    fn bytes_of_a_stack_add_up_by_device() {
        let askers = Askers::new();
        askers.add(0, 7, 1 << 20);
        askers.add(0, 7, 1 << 20);
        askers.add(0, 9, 3 << 20);
        askers.add(1, 7, 100);
        askers.add(HOST_DEVICE, 5, 4096);
        assert_eq!(askers.take(0, 9), [(9, 3 << 20), (7, 2 << 20)]);
        assert_eq!(askers.take(0, 9), []);
        assert_eq!(
            (askers.take(1, 9), askers.take(HOST_DEVICE, 9)),
            (vec![(7, 1024)], vec![(5, 4096)])
        );
    }

    #[test]
    fn of_two_stacks_in_one_place_the_larger_stays() {
        let askers = Askers::new();
        let other = 7 + SLOTS as u32;
        askers.add(0, 7, 2 << 20);
        askers.add(0, other, 1 << 20);
        assert_eq!(askers.take(0, 9), [(7, 2 << 20)]);
        askers.add(0, 7, 1 << 20);
        askers.add(0, other, 8 << 20);
        askers.add(0, other, u64::MAX);
        let taken = askers.take(0, 9);
        assert_eq!((taken.len(), taken[0].0), (1, other));
    }
}
