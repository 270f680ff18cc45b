//! Several threads write one journal at the same time. No event is missing, and the events are in the order of time and of
//! each thread. Slots that a thread has reserved but not used are not counted.

use std::sync::mpsc;

use super::{create, event, numbers, open};
use journal::format::{HEADER_SIZE, SLOT_SIZE};
use journal::reader::State;
use journal::writer::{Journal, Outcome};

const THREADS: u64 = 4;

/// The slots of the events, in the order of the events.
fn slots(journal: &Journal) -> Vec<u64> {
    let journal = open(journal.path());
    journal.records().map(|record| record.unwrap().slot).collect()
}

#[test]
fn one_thread_fills_slot_after_slot() {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    for number in 0..1000 {
        journal.write(event(number));
    }
    assert_eq!(slots(&journal), (0..1000).collect::<Vec<_>>());
}

#[test]
fn threads_in_turns_take_slots_in_batches_and_keep_the_order() {
    const TURNS: u64 = 1000;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    let (to_other, turn) = mpsc::channel();
    let (done, answer) = mpsc::channel();
    std::thread::scope(|scope| {
        let journal = &journal;
        scope.spawn(move || {
            for number in turn {
                journal.write(event(number));
                done.send(()).unwrap();
            }
            // This claim is never committed.
            journal.claim();
        });
        for number in 0..TURNS {
            let claim = journal.claim();
            to_other.send(3 * number + 1).unwrap();
            answer.recv().unwrap();
            journal.write(event(3 * number + 2));
            journal.commit(claim, event(3 * number));
        }
        drop(to_other);
    });
    let (found, unfinished) = numbers(&open(journal.path()));
    assert_eq!(found, (0..3 * TURNS).collect::<Vec<_>>());
    assert_eq!(unfinished, 1, "the open claim, and no slot that was only reserved");
    let slots = slots(&journal);
    let steps = slots.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert!(steps as u64 > TURNS, "two threads shared a batch of slots");
    let used = 3 * TURNS + 1;
    assert!((used..=used + 2 * 64).contains(&(slots.iter().max().unwrap() + 1)));
}

#[test]
fn claims_that_are_committed_late_keep_their_time_among_many_threads() {
    const EACH: u64 = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 30);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let journal = &journal;
            scope.spawn(move || {
                for number in (0..EACH).step_by(4) {
                    let claim = journal.claim();
                    for later in number + 1..number + 4 {
                        assert_eq!(journal.write(event(thread << 32 | later)), Outcome::Written);
                    }
                    assert_eq!(journal.commit(claim, event(thread << 32 | number)), Outcome::Written);
                }
            });
        }
    });
    journal.ended(3);
    let read = open(journal.path());
    // A process does not see its own record lock, so to this process the journal looks ended.
    assert_eq!(read.state(), State::Exited(3));
    let (found, unfinished) = numbers(&read);
    assert_eq!((found.len() as u64, unfinished), (THREADS * EACH, 0));
    let mut next = [0; THREADS as usize];
    for number in found {
        let next = &mut next[(number >> 32) as usize];
        assert_eq!(number & 0xffff_ffff, *next);
        *next += 1;
    }
}

#[test]
fn at_the_size_limit_the_count_of_lost_events_is_exact() {
    const EACH: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    let firsts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let write = |number| usize::from(journal.write(event(number)) == Outcome::Lost { first: true });
                scope.spawn(move || (0..EACH).map(write).sum::<usize>())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(firsts, 1, "the first loss is reported once");
    assert!(journal.loss_reason().contains("1048576"), "{}", journal.loss_reason());
    let slots = ((1 << 20) - HEADER_SIZE) / SLOT_SIZE;
    let written = open(journal.path());
    let (found, unfinished) = numbers(&written);
    assert_eq!((found.len(), unfinished), (slots, 0));
    assert_eq!(found.len() as u64 + written.lost(), THREADS * EACH);
    assert_eq!(std::fs::metadata(journal.path()).unwrap().len(), 1 << 20);
}
