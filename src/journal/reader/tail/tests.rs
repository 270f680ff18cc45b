//! Tests a tail on a journal that the test writes slot by slot.

use std::collections::BTreeSet;

use super::*;
use crate::reader::tests::SlotFile;

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
    assert!(stage.tail.open.is_empty());
    stage.look();
    stage.assert_each_once(0..=300);
}

#[test]
fn what_a_file_makes_it_remember_is_bounded() {
    let mut stage = Stage::new();
    stage.file.claim(60_000);
    while stage.look().behind {}
    assert_eq!(stage.tail.open.len(), MOST_OPEN);
    assert_eq!(stage.tail.given_up, 60_000 - MOST_OPEN as u64);
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
