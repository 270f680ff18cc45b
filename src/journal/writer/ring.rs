//! The ring: where records go while the file cannot grow. It is the last part of the file, which `Mapping` keeps free
//! until then.
//!
//! Each record takes the place of the oldest one, so the ring has the newest records. The first failures stay: they say
//! more than what comes after them. A thread locks a place by the bit `UNDER_WAY` of its commit word, so no two threads
//! write to one place. A thread that finds a place locked takes the next.

use std::ptr;

// The model of the ring (`models`) has other atomics here.
use super::atomic::{AtomicU64, Ordering::*};
use super::mapping::{Mapping, Ring};
use crate::format::{RawRecord, UNDER_WAY, commit_word, kept_failures};

/// What became of the record that had the place before.
pub(super) enum Before {
    Nothing,
    /// A record of this time was lost.
    Lost(u64),
}

/// Puts a record into the ring. `kept` counts the failures that stay. `None` if there is no ring, or if other threads
/// have locked every place.
#[cold]
pub(super) fn put(mapping: &Mapping, kept: &AtomicU64, mut record: RawRecord) -> Option<Before> {
    let Ring { first, slots } = mapping.ring()?;
    if record.is_failure() && kept.fetch_add(1, Relaxed) < kept_failures(slots) {
        record.keep();
    }
    for _ in 0..slots {
        // SAFETY: the header is mapped as long as the process lives, and this field is only ever used as an atomic.
        let taken = unsafe { (*mapping.header()).ring_taken.fetch_add(1, Relaxed) };
        let index = first + taken % slots;
        let slot = mapping.slot(index);
        // SAFETY: the ring lies in the mapped part of the file, which stays mapped. The word is only used as an atomic.
        let commit = unsafe { &(*slot).commit };
        let word = commit.load(Relaxed);
        let locked = (index + 1) | UNDER_WAY;
        if word & UNDER_WAY != 0 || commit.compare_exchange(word, locked, Acquire, Relaxed).is_err() {
            continue;
        }
        // SAFETY: the slot is mapped, and this thread has locked it. A record of zeros is a valid one.
        let old = unsafe { ptr::read(&raw const (*slot).record) };
        if word != 0 && old.is_kept() {
            commit.store(word, Release);
            continue;
        }
        // SAFETY: as above.
        unsafe { ptr::write(&raw mut (*slot).record, record) };
        commit.store(commit_word(index, &record), Release);
        return Some(match word {
            0 => Before::Nothing,
            _ => Before::Lost(old.time_ns()),
        });
    }
    None
}
