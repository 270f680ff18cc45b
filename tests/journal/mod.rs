//! Tests of the journal's writer: many threads, a full disk, and a job that closes descriptors that are not its own. Jobs
//! that are killed, fork or exec are tested in `sigkill`, `start` and `torture`.

use std::path::Path;
use std::time::Duration;
use support::{assert_says, journals_in};

use base::api::{Api, Class};
use journal::format::Device;
use journal::format::{Allocation, Event, HEADER_SIZE, RawRecord, SLOT_SIZE};
use journal::reader::{self, State};
use journal::writer::{About, Journal, Outcome};

mod clocks;
mod descriptors;
mod full;
mod threads;

fn create(folder: &Path, max_bytes: u64) -> Journal {
    Journal::create(folder, max_bytes, About::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// An event whose other fields all follow from its number, so that a mixed-up record is noticed. It is one that can be true.
fn numbered(number: u64) -> Event {
    Event::Alloc(Allocation {
        class: Class::Linear.into(),
        address: number,
        requested: number.wrapping_mul(3),
        allocated: !number >> 8,
        reserved: Some(number ^ 0x5555),
        stream: 0,
    })
}

fn event(number: u64) -> RawRecord {
    numbered(number).encode(Api::cudaMalloc, 0)
}

/// The numbers of the events in a journal, in order, and the count of unfinished slots. Checks that each event is whole
/// and not earlier than the event before it.
fn numbers(journal: &reader::Journal) -> (Vec<u64>, u64) {
    let (mut records, mut numbers, mut before) = (journal.records(), Vec::new(), 0);
    for found in records.by_ref() {
        let record = found.unwrap();
        assert!(record.tid > 0 && record.time_ns >= before);
        before = record.time_ns;
        assert_eq!((record.api, record.device), (Api::cudaMalloc.into(), 0));
        let Event::Alloc(Allocation { address, .. }) = record.event else {
            panic!("{record:?}")
        };
        assert_eq!(record.event, numbered(address));
        numbers.push(address);
    }
    (numbers, records.unfinished())
}

fn open(path: &Path) -> reader::Journal {
    reader::Journal::open(path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn it_counts_frees_of_unknown_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    journal.unknown_free();
    journal.unknown_free();
    assert_eq!(open(journal.path()).header().unknown_frees, 2);
}

#[test]
fn files_are_private_and_folders_made() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(&folder.path().join("a/b"), 1 << 20);
    let mode = std::fs::metadata(journal.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let device = |ordinal, name: String| Device {
        ordinal,
        total_memory: 5,
        uuid: [1; 16],
        name,
        ..Device::default()
    };
    journal.device(&device(0, "A".to_owned()));
    journal.device(&device(0, "A".to_owned()));
    journal.device(&device(1, "long ".repeat(99)));
    let devices = open(journal.path()).header().devices.clone();
    assert_eq!(devices.len(), 2);
    assert_eq!((devices[1].ordinal, devices[1].name.len()), (1, 64));
}

#[test]
fn the_group_reads_a_journal_only_if_it_is_told_so() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("of a group");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o2770)).unwrap();
    let journal = create(&folder, 1 << 20);
    let found = || std::fs::metadata(journal.path()).unwrap();
    assert_eq!(found().mode() & 0o7777, 0o600);
    journal.let_group_read().unwrap();
    assert_eq!(found().mode() & 0o7777, 0o640);
    assert_eq!(found().gid(), std::fs::metadata(&folder).unwrap().gid());
}

#[test]
fn errors_name_path_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Journal::create(&file, 1 << 20, About::default())
        .err()
        .unwrap()
        .to_string();
    assert_says(&error, "file");
    assert_says(&error, "create the directory");
    let error = Journal::create(Path::new("/proc/nothing"), 1 << 20, About::default()).err();
    assert_says(&error.unwrap().to_string(), "/proc/nothing");
}

/// Writes until an event is lost, and returns the number of events written before.
fn write_until_lost(journal: &Journal) -> u64 {
    let is_written = |&number: &u64| journal.write(event(number)) == Outcome::Written;
    (0..1_000_000).take_while(is_written).count() as u64
}

fn on_small_disk(folder: &Path) {
    let ballast = folder.join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let journal = create(folder, 1 << 30);
    let written = write_until_lost(&journal);
    // Every mapped page has disk space, or SIGBUS would have killed this process by now.
    assert!(written as usize * SLOT_SIZE > 3 << 19, "{written} events in 2 MiB");
    std::fs::remove_file(&ballast).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(journal.write(event(0)), Outcome::Written, "freed space is used");
    let read = open(journal.path());
    assert_eq!((numbers(&read).0.len() as u64, read.lost()), (written + 1, 1));
    assert_eq!(read.header().lost_errno, libc::ENOSPC);

    // Fills the disk to the last page; the write itself fails.
    let _ = std::fs::write(&ballast, vec![1; 4 << 20]);
    let error = Journal::create(folder, 1 << 30, About::default()).err();
    assert_says(&error.expect("no room for a header").to_string(), "No space left");
    // Of a journal that could not be created no file is left.
    assert_eq!(journals_in(folder).len(), 1);
}

#[test]
fn a_full_disk_loses_events_and_not_the_job() {
    let folder = tempfile::tempdir().unwrap();
    if !support::small_disk(folder.path(), 3 << 10, || on_small_disk(folder.path())) {
        support::left_out("no permission to mount a small disk");
    }
}
