//! A full journal keeps its beginning, the failures and the end.

use super::*;

/// A failed request for `bytes`.
fn failure(bytes: u64) -> RawRecord {
    support::made::failed(bytes, 2, false).encode(Api::cudaMalloc, 0)
}

#[test]
fn a_full_journal_keeps_the_beginning_the_failures_and_the_end() {
    const SLOTS: u64 = (((1 << 20) - HEADER_SIZE) / SLOT_SIZE) as u64;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    let mut last = 0;
    let mut write = |count: u64| {
        for number in last..last + count {
            journal.write(event(number));
        }
        last += count;
    };
    write(SLOTS);
    journal.write(failure(7));
    write(10 * SLOTS);
    journal.write(failure(8));
    write(100);
    journal.ended(1);

    let read = open(journal.path());
    let records: Vec<Event> = read.records().map(|record| record.unwrap().event).collect();
    let (mut failed, mut found) = (Vec::new(), Vec::new());
    for event in &records {
        match event {
            Event::AllocFailed { requested, .. } => failed.push(*requested),
            Event::Alloc(allocation) => found.push(allocation.address),
            _ => {}
        }
    }
    assert_eq!(failed, [7, 8]);
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "in order, none twice");
    assert!(found.iter().copied().take(SLOTS as usize / 2).eq(0..SLOTS / 2));
    assert!(found.iter().copied().rev().take(500).eq((last - 500..last).rev()));
    // What lies between is counted.
    assert_eq!(records.len() as u64 + read.lost(), last + 2);
    assert_eq!(std::fs::metadata(journal.path()).unwrap().len(), 1 << 20);
    assert_eq!(read.state(), State::Exited(1));
}

#[test]
fn failures_never_fill_a_full_journal() {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    for number in 0..100_000 {
        journal.write(failure(number));
    }
    journal.write(event(5));
    let read = open(journal.path());
    let last = read.records().last().unwrap().unwrap();
    assert!(matches!(last.event, Event::Alloc(_)), "{last:?}");
    let found = read.records().count() as u64;
    assert_eq!(found + read.lost(), 100_001);
}

#[test]
fn a_tail_sees_what_comes_after_the_journal_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    let (mut tail, mut buffer, mut seen) = (reader::Tail::default(), Vec::new(), Vec::new());
    let mut look = || {
        let read = open(journal.path());
        let mut step = || tail.read(&read, &mut buffer, &mut |record| seen.push(record));
        while step().unwrap().behind {}
    };
    for number in 0..40_000 {
        journal.write(event(number));
        // The ring has about a thousand records, so none of them is lost between two looks.
        if number % 500 == 499 {
            look();
        }
    }
    look();
    seen.sort_by_key(|record| (record.time_ns, record.slot));
    let seen: Vec<_> = seen.into_iter().map(|record| record.event).collect();
    assert_eq!(seen, (0..40_000).map(numbered).collect::<Vec<_>>());
}
