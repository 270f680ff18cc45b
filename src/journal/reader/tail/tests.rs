//! Tests a tail on a journal that the test writes slot by slot.

use std::collections::BTreeSet;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::format::{HEADER_SIZE, Header, UNDER_WAY};
use crate::reader::tests::{commit, create};

struct Stage {
    _folder: tempfile::TempDir,
    path: PathBuf,
    file: File,
    tail: Tail,
    told: Vec<u64>,
}

impl Stage {
    fn new() -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let journal = create(folder.path(), 8 << 20);
        let path: PathBuf = Path::new(journal.path()).into();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len((HEADER_SIZE + 60_000 * SLOT_SIZE) as u64).unwrap();
        Stage {
            _folder: folder,
            file,
            path,
            tail: Tail::default(),
            told: Vec::new(),
        }
    }

    fn put(&self, at: usize, number: u64) {
        self.file.write_all_at(&number.to_le_bytes(), at as u64).unwrap();
    }

    fn claim(&self, slots: u64) {
        self.put(offset_of!(Header, claimed), slots);
    }

    fn begin(&self, index: u64) {
        self.put(HEADER_SIZE + index as usize * SLOT_SIZE, (index + 1) | UNDER_WAY);
    }

    fn commit(&self, index: u64) {
        let mut slot = [0; SLOT_SIZE];
        slot[8..16].copy_from_slice(&(index + 1).to_le_bytes());
        commit(index, &mut slot);
        (self
            .file
            .write_all_at(&slot, HEADER_SIZE as u64 + index * SLOT_SIZE as u64))
        .unwrap();
    }

    fn look(&mut self) -> Reading {
        let journal = Journal::open(&self.path).unwrap();
        let told = &mut self.told;
        (self
            .tail
            .read(&journal, &mut Vec::new(), &mut |record| told.push(record.slot)))
        .unwrap()
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
    stage.claim(300);
    (0..300)
        .filter(|slot| slot % 3 == 0)
        .for_each(|slot| stage.commit(slot));
    stage.begin(1);
    assert!(!stage.look().behind);
    stage.assert_each_once((0..300).step_by(3));
    (0..300)
        .filter(|slot| slot % 3 != 0)
        .for_each(|slot| stage.commit(slot));
    stage.claim(301);
    stage.commit(300);
    stage.look();
    assert!(stage.tail.open.is_empty());
    stage.look();
    stage.assert_each_once(0..=300);
}

#[test]
fn a_long_file_is_read_in_portions() {
    let mut stage = Stage::new();
    let slots = 2 * PORTION + 5;
    (0..slots).for_each(|slot| stage.commit(slot));
    stage.claim(slots);
    assert!(stage.look().behind);
    assert_eq!(stage.told.len() as u64, PORTION);
    assert!(stage.look().behind);
    assert!(!stage.look().behind);
    stage.assert_each_once(0..slots);
}

#[test]
fn what_a_file_makes_it_remember_is_bounded() {
    let mut stage = Stage::new();
    stage.claim(60_000);
    while stage.look().behind {}
    assert_eq!(stage.tail.open.len(), MOST_OPEN);
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
    stage.claim(100);
    assert!(!stage.look().cut);
    stage.file.set_len((HEADER_SIZE + 50 * SLOT_SIZE) as u64).unwrap();
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
