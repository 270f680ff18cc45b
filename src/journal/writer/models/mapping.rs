//! The file of a journal as the writer's files see it, in plain memory.

use super::atomic::{AtomicU64, Ordering::*};
use crate::format::RawRecord;

pub struct Slot {
    pub commit: AtomicU64,
    pub record: RawRecord,
}

pub struct Header {
    pub claimed: AtomicU64,
    pub ring_taken: AtomicU64,
}

#[derive(Clone, Copy)]
pub struct Ring {
    pub first: u64,
    pub slots: u64,
}

pub struct Mapping {
    header: Header,
    mapped: AtomicU64,
    /// Slots that the file can have.
    most: u64,
    ring: Box<[Slot]>,
}

// SAFETY: as for the real mapping: only atomics change, and slots whose commit word a thread has locked.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(mapped: u64, most: u64, ring: u64) -> Mapping {
        Mapping {
            header: Header {
                claimed: AtomicU64::new(0),
                ring_taken: AtomicU64::new(0),
            },
            mapped: AtomicU64::new(mapped),
            most,
            ring: (0..ring)
                .map(|_| Slot {
                    commit: AtomicU64::new(0),
                    record: RawRecord([0; 7]),
                })
                .collect(),
        }
    }

    pub fn header(&self) -> *mut Header {
        (&raw const self.header).cast_mut()
    }

    pub fn slot(&self, index: u64) -> *mut Slot {
        (&raw const self.ring[index as usize]).cast_mut()
    }

    pub fn slots(&self) -> &[Slot] {
        &self.ring
    }

    pub fn ring(&self) -> Option<Ring> {
        let slots = self.ring.len() as u64;
        Some(Ring { first: 0, slots })
    }

    pub fn claimed(&self) -> u64 {
        self.header.claimed.load(Relaxed)
    }

    pub fn mapped(&self) -> u64 {
        self.mapped.load(Acquire)
    }

    pub fn now(&self) -> u64 {
        0
    }

    /// Grows the file by one slot, or finds that another thread has done so.
    pub fn reach(&self, index: u64, _time_ns: u64) -> bool {
        if index < self.mapped() {
            return true;
        }
        if index >= self.most {
            return false;
        }
        let _ = self.mapped.compare_exchange(index, index + 1, Release, Relaxed);
        true
    }
}
