//! Every order of the steps of two threads that take slots or write into the ring (loom). The code is the real one, with
//! loom's atomics and a file in plain memory.

use loom::sync::atomic;
use loom::thread;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

mod mapping;
#[allow(clippy::duplicate_mod)] // The model is the file with other atomics.
#[path = "ring.rs"]
mod ring;
#[allow(dead_code)] // The model keeps the reserve of a thread itself: the threads of loom are one thread.
#[allow(clippy::duplicate_mod)]
#[path = "slots.rs"]
mod slots;

use crate::format::{Event, MarkKind, RawRecord, UNDER_WAY, commit_word};
use base::api::Api;
use mapping::Mapping;
use ring::Before;
use slots::{EMPTY, NO_SLOT};

const JOURNAL: u32 = 7;

/// What two threads get that take so many slots each, of a file with `mapped` slots that can grow to `most`. Before, the
/// first thread takes `alone` slots.
fn slots_of_two(mapped: u64, most: u64, alone: u32, each: u32) {
    loom::model(move || {
        let mapping = Arc::new(Mapping::new(mapped, most, 0));
        let kept = Cell::new(EMPTY);
        let mut taken: Vec<u64> = (0..alone)
            .map(|_| slots::take_with(&mapping, JOURNAL, &kept).0)
            .collect();
        let others = mapping.clone();
        let other = thread::spawn(move || {
            let kept = Cell::new(EMPTY);
            let take = || slots::take_with(&others, JOURNAL, &kept).0;
            (0..each).map(|_| take()).collect::<Vec<_>>()
        });
        taken.extend((0..each).map(|_| slots::take_with(&mapping, JOURNAL, &kept).0));
        taken.extend(other.join().unwrap());
        taken.retain(|&slot| slot != NO_SLOT);
        let distinct: BTreeSet<u64> = taken.iter().copied().collect();
        assert_eq!(distinct.len(), taken.len(), "no slot is given twice: {taken:?}");
        assert!(distinct.iter().all(|&slot| slot < mapping.mapped()), "{taken:?}");
        assert!(mapping.claimed() <= mapping.mapped(), "a lost event takes no slot");
        let wanted = u64::from(alone + 2 * each);
        if wanted <= mapped {
            assert_eq!(taken.len() as u64, wanted, "none is lost");
        }
    });
}

#[test]
fn no_slot_is_given_twice() {
    slots_of_two(300, 300, 0, 3);
}

#[test]
fn no_slot_is_given_twice_after_a_thread_has_written_alone() {
    slots_of_two(300, 300, 36, 3);
}

#[test]
fn no_slot_is_given_that_is_not_mapped() {
    slots_of_two(3, 3, 0, 3);
}

#[test]
fn the_file_grows_while_slots_are_taken() {
    slots_of_two(2, 4, 0, 2);
}

fn record(time_ns: u64, is_failure: bool) -> RawRecord {
    let event = if is_failure {
        Event::FreeFailed {
            address: time_ns,
            segment: None,
            result: 1,
        }
    } else {
        Event::Mark {
            text: time_ns,
            kind: MarkKind::Instant,
        }
    };
    let record = event.encode(Api::Policy, 0).at(time_ns, 0);
    assert_eq!(record.is_failure(), is_failure);
    record
}

/// Two threads put so many records each into a ring; the first record of the second thread is a failure if `fails`.
fn ring_of_two(slots: u64, each: u64, fails: bool) {
    loom::model(move || {
        let mapping = Arc::new(Mapping::new(0, 0, slots));
        let kept = Arc::new(atomic::AtomicU64::new(0));
        let put = move |mapping: &Mapping, kept: &atomic::AtomicU64, first: u64, fails: bool| {
            let mut lost = Vec::new();
            for number in 0..each {
                let record = record(first + number, fails && number == 0);
                match ring::put(mapping, kept, record) {
                    Some(Before::Nothing) => {}
                    Some(Before::Lost(time_ns)) => lost.push(time_ns),
                    None => lost.push(record.time_ns()),
                }
            }
            lost
        };
        let (its_mapping, its_kept) = (mapping.clone(), kept.clone());
        let other = thread::spawn(move || put(&its_mapping, &its_kept, 200, fails));
        let mut lost = put(&mapping, &kept, 100, false);
        lost.extend(other.join().unwrap());

        let mut told: Vec<u64> = lost.clone();
        for (index, slot) in (0..).zip(mapping.slots()) {
            let word = slot.commit.load(atomic::Ordering::Acquire);
            assert_eq!(word & UNDER_WAY, 0, "no place stays locked");
            if word != 0 {
                assert_eq!(word, commit_word(index, &slot.record), "each record is whole");
                told.push(slot.record.time_ns());
            }
        }
        told.sort_unstable();
        let all: Vec<u64> = (100..100 + each).chain(200..200 + each).collect();
        assert_eq!(told, all, "each record is in the ring or counted as lost, and once");
        assert!(!fails || slots < 8 || !lost.contains(&200), "a kept failure is lost");
    });
}

#[test]
fn each_record_is_in_the_ring_or_counted_as_lost() {
    ring_of_two(1, 2, false);
    ring_of_two(2, 2, false);
}

#[test]
fn a_failure_stays_in_the_ring() {
    ring_of_two(8, 1, true);
}
