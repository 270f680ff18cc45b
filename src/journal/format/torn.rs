//! What a reader makes of a slot that it reads while the slot is written.
//!
//! A reader may see the words of a record in any order, because it copies the slot with a `read` or without a barrier. In
//! the ring, several records have had the slot. So the test gives the reader each mixture of the words of three records,
//! and each word that the commit word has had.

use super::*;
use base::api::Api;
use base::cuda::HOST_DEVICE;

const INDEX: u64 = 70_000;

/// Three records that could follow each other in one slot, and differ in few words.
fn records() -> [RawRecord; 3] {
    [1u64, 2, 3].map(|number| {
        let event = Event::Mark {
            text: 0x7f00_0000_0000 + (number << 9),
            kind: MarkKind::Instant,
        };
        let mut words = event.encode(Api::Policy, HOST_DEVICE).0;
        for (place, word) in (0..).zip(&mut words) {
            *word ^= number << (8 * place);
        }
        RawRecord(words)
    })
}

fn slot(commit: u64, words: [u64; 7]) -> [u8; SLOT_SIZE] {
    let mut slot = [0; SLOT_SIZE];
    let all = [commit].into_iter().chain(words);
    for (bytes, word) in slot.chunks_exact_mut(8).zip(all) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    slot
}

/// Calls `look` with every mixture of the words of the three records, and with the record that it is, if it is one.
fn each_mixture(mut look: impl FnMut([u64; 7], Option<RawRecord>)) {
    let records = records();
    let words = records.map(|record| record.0);
    for mixture in 0..3usize.pow(7) {
        let mixed = std::array::from_fn(|place| words[mixture / 3usize.pow(place as u32) % 3][place]);
        look(
            mixed,
            words
                .iter()
                .position(|whole| *whole == mixed)
                .map(|which| records[which]),
        );
    }
}

#[test]
fn a_mixture_of_records_is_never_taken_for_a_record() {
    let mut whole = 0;
    each_mixture(|words, is| {
        for committed in records() {
            let word = commit_word(INDEX, &committed);
            match SlotState::read(INDEX, &slot(word, words)) {
                SlotState::Committed(record) => {
                    assert_eq!((Some(record), record), (is, committed));
                    whole += 1;
                }
                state => assert_eq!(state, SlotState::Damaged),
            }
        }
    });
    assert_eq!(whole, 3, "each record with its own commit word");
}

#[test]
fn no_record_is_taken_from_a_slot_that_is_not_committed() {
    each_mixture(|words, _| {
        let state = |word| SlotState::read(INDEX, &slot(word, words));
        assert_eq!(state(0), SlotState::Unused);
        assert_eq!(state((INDEX + 1) | UNDER_WAY), SlotState::UnderWay);
    });
}

#[test]
fn a_record_of_another_slot_is_not_taken() {
    for record in records() {
        for other in [INDEX - 1, INDEX + 1, INDEX ^ 1 << 30] {
            let slot = slot(commit_word(other, &record), record.0);
            assert_eq!(SlotState::read(INDEX, &slot), SlotState::Damaged);
        }
    }
}
