//! Tests a tail on a journal that the test writes slot by slot.

use std::collections::BTreeSet;

use super::*;
use crate::reader::tests::{SlotFile, create};

struct Stage {
    file: SlotFile,
    tail: Tail,
    told: Vec<u64>,
}

impl Stage {
    fn new() -> Stage {
        let file = SlotFile::new();
        file.resize(60_000);
        Stage {
            file,
            tail: Tail::default(),
            told: Vec::new(),
        }
    }

    fn commit(&self, index: u64) {
        self.file.commit(index, index + 1);
    }

    fn look(&mut self) -> Reading {
        let told = &mut self.told;
        let mut each = |record: Record| told.push(record.slot);
        self.tail.read(&self.file.open(), &mut Vec::new(), &mut each).unwrap()
    }

    fn assert_each_once(&self, slots: impl IntoIterator<Item = u64>) {
        let set: BTreeSet<u64> = self.told.iter().copied().collect();
        assert_eq!(set.len(), self.told.len(), "a record came twice");
        assert!(set.into_iter().eq(slots));
    }
}

#[test]
fn slots_in_reserve_and_under_way_come_when_they_are_complete() {
    let mut stage = Stage::new();
    stage.file.claim(300);
    (0..300)
        .filter(|slot| slot % 3 == 0)
        .for_each(|slot| stage.commit(slot));
    stage.file.begin(1);
    assert!(!stage.look().behind);
    stage.assert_each_once((0..300).step_by(3));
    (0..300)
        .filter(|slot| slot % 3 != 0)
        .for_each(|slot| stage.commit(slot));
    stage.file.claim(301);
    stage.commit(300);
    stage.look();
    assert!(stage.tail.0.open.is_empty());
    stage.look();
    stage.assert_each_once(0..=300);
}

#[test]
fn a_long_file_is_read_in_portions() {
    let mut stage = Stage::new();
    let slots = 2 * PORTION + 5;
    (0..slots).for_each(|slot| stage.commit(slot));
    stage.file.claim(slots);
    assert!(stage.look().behind);
    assert_eq!(stage.told.len() as u64, PORTION);
    assert!(stage.look().behind);
    assert!(!stage.look().behind);
    stage.assert_each_once(0..slots);
}

#[test]
fn what_a_file_makes_it_remember_is_bounded() {
    let mut stage = Stage::new();
    stage.file.claim(60_000);
    while stage.look().behind {}
    assert_eq!(stage.tail.0.open.len(), MOST_OPEN);
    assert_eq!(stage.tail.given_up(), 60_000 - MOST_OPEN as u64);
    // The latest slots are those that are read again.
    stage.commit(59_999);
    stage.look();
    stage.assert_each_once([59_999]);
}

#[test]
fn a_file_that_was_cut_is_told() {
    let mut stage = Stage::new();
    (0..100).for_each(|slot| stage.commit(slot));
    stage.file.claim(100);
    assert!(!stage.look().cut);
    stage.file.resize(50);
    assert!(stage.look().cut);
    stage.assert_each_once(0..100);
}

#[test]
fn each_record_of_the_ring_of_a_full_journal_comes_once() {
    use crate::format::{Event, MarkKind};
    use base::api::Api;
    const EVENTS: u64 = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    let (mut tail, mut told) = (Tail::default(), Vec::new());
    for number in 0..EVENTS {
        let event = Event::Mark {
            text: number,
            kind: MarkKind::Instant,
        };
        journal.write(event.encode(Api::cudaMalloc, 0));
        // More often than the ring comes round.
        if number % 200 == 199 {
            let read = Journal::open(journal.path()).unwrap();
            let mut each = |record: Record| match record.event {
                Event::Mark { text, .. } => told.push(text),
                other => panic!("{other:?}"),
            };
            tail.read(&read, &mut Vec::new(), &mut each).unwrap();
        }
    }
    assert!(
        Journal::open(journal.path()).unwrap().ring().is_some(),
        "the journal is not full"
    );
    told.sort_unstable();
    assert!(told.iter().copied().eq(0..EVENTS), "{} of {EVENTS}", told.len());
}
