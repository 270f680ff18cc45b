use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::header::parse_header;
use super::journal::read_settled;
use super::*;
use crate::format::{self, Allocation, Event, HEADER_SIZE, RawRecord, Record, SLOT_SIZE};
use crate::writer;
use base::api::{Api, Class};
use base::cuda::HOST_DEVICE;
use proptest::prelude::*;

const EVENTS: u64 = 100;
/// The events of `ended_sample`.
const ENDED_EVENTS: u64 = 6;

/// The bytes of a real journal with a hundred events, cut off after the last one, as if its thread had no slot in reserve.
fn sample() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    for address in 1..=EVENTS {
        assert_eq!(journal.write(record(address)), writer::Outcome::Written);
    }
    let mut bytes = std::fs::read(journal.path()).unwrap();
    bytes.truncate(HEADER_SIZE + EVENTS as usize * SLOT_SIZE);
    bytes[offset_of!(format::Header, claimed)..][..8].copy_from_slice(&EVENTS.to_le_bytes());
    bytes
}

/// A small journal of a process that exited, with lost events, unknown frees, and software.
fn ended_sample() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    // The smallest file, so that all of it can be damaged bit by bit.
    let journal = create(folder.path(), 0);
    journal.software(b"runtime=13.0\0framework=PyTorch 2.12.0");
    journal.unknown_free();
    journal.alive();
    for address in 1..=ENDED_EVENTS {
        journal.write(record(address));
    }
    journal.ended(3);
    std::fs::read(journal.path()).unwrap()
}

pub(super) fn create(folder: &Path, max_bytes: u64) -> writer::Journal {
    let about = writer::About {
        strategy: "passthrough".into(),
        job: "sample".into(),
        command_line: b"python\0train.py\0\0--fast".to_vec(),
        environment: b"RANK=3\0WORLD_SIZE=8".to_vec(),
        ..writer::About::default()
    };
    let journal = writer::Journal::create(folder, max_bytes, about).unwrap();
    journal.device(&Device {
        total_memory: 80 << 30,
        uuid: [7; 16],
        name: "Simulated GPU".into(),
        limit: Some(8 << 30),
        limit_source: format::LimitSource::Layer,
        ..Device::default()
    });
    journal
}

fn event(address: u64) -> Event {
    Event::Alloc(Allocation {
        class: Class::Linear.into(),
        address,
        requested: 2,
        allocated: 512,
        reserved: Some(4),
        stream: 0,
    })
}

fn record(address: u64) -> RawRecord {
    event(address).encode(Api::cudaMalloc, HOST_DEVICE)
}

fn with_file<T>(bytes: &[u8], look: impl FnOnce(&Path) -> T) -> T {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    look(file.path())
}

fn problem(bytes: &[u8]) -> String {
    with_file(bytes, |path| Journal::open(path).err().expect("an error").to_string())
}

#[test]
fn reads_what_was_written() {
    with_file(&sample(), |path| {
        let journal = Journal::open(path).unwrap();
        let header = journal.header();
        assert_eq!(header.pid, std::process::id());
        assert_eq!(header.job, "sample");
        assert_eq!(header.pid_namespace, Some(base::identity::pid_namespace()));
        assert_eq!(header.host_pid, base::identity::outermost_pid());
        assert_eq!(header.user, Some(base::identity::effective_user()));
        assert_eq!(header.command_line, ["python", "train.py", "", "--fast"]);
        assert_eq!(header.environment[0], ("RANK".into(), "3".into()));
        assert_eq!(header.devices.len(), 1);
        assert_eq!(header.devices[0].name, "Simulated GPU");
        let device = &header.devices[0];
        assert_eq!(device.limit, Some(8 << 30));
        assert_eq!(device.limit_source, format::LimitSource::Layer);
        assert_eq!(journal.state(), State::Killed);
        assert_eq!(journal.lost(), 0);
        let records: Vec<_> = journal.records().map(Result::unwrap).collect();
        assert_eq!(records.len() as u64, EVENTS);
        for (slot, found) in (0..).zip(&records) {
            let Record { time_ns, tid, .. } = *found;
            assert!(tid > 0);
            let expected = Record {
                slot,
                time_ns,
                tid,
                api: Api::cudaMalloc.into(),
                device: HOST_DEVICE,
                stack: 0,
                event: event(slot + 1),
            };
            assert_eq!(*found, expected);
        }
    });
}

/// The sample with other commit words in some slots (`(slot, word)`).
fn with_words(words: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = sample();
    for &(index, word) in words {
        bytes[HEADER_SIZE + index as usize * SLOT_SIZE..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// How many records the file has, how many are unfinished, and how many damaged.
fn counts(bytes: &[u8]) -> (u64, u64, u64) {
    with_file(bytes, |path| {
        let journal = Journal::open(path).unwrap();
        let mut events = journal.records();
        (events.by_ref().count() as u64, events.unfinished(), events.damaged())
    })
}

#[test]
fn slots_without_a_record_are_counted_and_the_rest_is_shown() {
    let under_way = |index: u64| (index, (index + 1) | format::UNDER_WAY);
    let words = [under_way(10), (11, 0), (12, 4711), (98, 0), under_way(99)];
    assert_eq!(counts(&with_words(&words)), (EVENTS - 5, 2, 1));
    let mut bytes = sample();
    for (slot, place) in [(3, 0), (7, 20), (8, 63)] {
        bytes[HEADER_SIZE + slot * SLOT_SIZE + place] ^= 4;
    }
    assert_eq!(counts(&bytes), (EVENTS - 3, 0, 3));
}

/// All that a reader says of a journal: what it could not read, or every field of the header but those that no figure
/// depends on, every record, and the counts of slots that have none. `told`: whether the reader says that something is
/// damaged.
fn says(path: &Path) -> (String, bool) {
    let journal = match Journal::open(path) {
        Ok(journal) => journal,
        Err(error) => return (format!("{:?}", error.problem), true),
    };
    let mut records = journal.records();
    let found: Vec<Record> = records.by_ref().map(Result::unwrap).collect();
    let mut header = journal.header().clone();
    let damaged = !std::mem::take(&mut header.damaged).is_empty() || records.damaged() > 0;
    (header.ring_taken, header.claimed) = (0, 0);
    let counts = (journal.lost(), journal.state(), records.unfinished());
    (format!("{header:?} {counts:?} {found:?}"), damaged)
}

#[test]
fn no_flipped_bit_changes_a_figure_silently() {
    let bytes = ended_sample();
    let file = tempfile::NamedTempFile::new().unwrap();
    let store = |place: usize, byte: u8| file.as_file().write_all_at(&[byte], place as u64).unwrap();
    file.as_file().write_all_at(&bytes, 0).unwrap();
    let before = says(file.path());
    assert!(!before.1, "the sample is whole");
    let texts = [
        offset_of!(format::Header, host)..offset_of!(format::Header, limits),
        offset_of!(format::Header, software)..HEADER_SIZE,
        HEADER_SIZE + ENDED_EVENTS as usize * SLOT_SIZE..bytes.len(),
    ];
    for bit in 0..8 * bytes.len() {
        let place = bit / 8;
        // In long texts and in unused slots one bit of each byte.
        if texts.iter().any(|text| text.contains(&place)) && bit % 8 != place % 8 {
            continue;
        }
        store(place, bytes[place] ^ 1 << (bit % 8));
        let (text, told) = says(file.path());
        let (bit, before) = (bit % 8, &before.0);
        assert!(
            told || text == *before,
            "bit {bit} of byte {place} changed\n{before}\nto\n{text}"
        );
        store(place, bytes[place]);
    }
}

/// The slots in the order in which `Records` hands out their records. The file is read in blocks of `slots` slots.
/// Checks that the position grows.
fn order(bytes: &[u8], slots: usize) -> Vec<u64> {
    with_file(bytes, |path| {
        let journal = Journal::open(path).unwrap();
        let mut events = Records::in_blocks(&journal, slots * SLOT_SIZE);
        let mut order = Vec::new();
        let mut position = 0;
        while let Some(event) = events.next() {
            order.push(event.unwrap().slot);
            assert!(
                (position..=journal.size()).contains(&events.position()),
                "it only grows"
            );
            position = events.position();
        }
        order
    })
}

/// Gives a slot the commit word of its record.
fn commit(index: u64, slot: &mut [u8]) {
    let word = format::commit_word(index, &RawRecord::from_bytes(&slot[8..]));
    slot[..8].copy_from_slice(&word.to_le_bytes());
}

/// The file of a journal that a test writes slot by slot.
pub(super) struct SlotFile {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    pub(super) file: std::fs::File,
}

impl SlotFile {
    pub(super) fn new() -> SlotFile {
        let folder = tempfile::tempdir().unwrap();
        let path = create(folder.path(), 1 << 20).path().to_owned();
        SlotFile {
            file: std::fs::File::options().write(true).open(&path).unwrap(),
            path,
            _folder: folder,
        }
    }

    pub(super) fn open(&self) -> Journal {
        Journal::open(&self.path).unwrap()
    }

    fn put(&self, at: usize, number: u64) {
        self.file.write_all_at(&number.to_le_bytes(), at as u64).unwrap();
    }

    pub(super) fn claim(&self, slots: u64) {
        self.put(offset_of!(format::Header, claimed), slots);
    }

    pub(super) fn begin(&self, index: u64) {
        self.put(
            HEADER_SIZE + index as usize * SLOT_SIZE,
            (index + 1) | format::UNDER_WAY,
        );
    }

    pub(super) fn commit(&self, index: u64, time: u64) {
        let mut slot = [0; SLOT_SIZE];
        slot[8..16].copy_from_slice(&time.to_le_bytes());
        commit(index, &mut slot);
        let place = HEADER_SIZE as u64 + index * SLOT_SIZE as u64;
        self.file.write_all_at(&slot[8..], place + 8).unwrap();
        self.file.write_all_at(&slot[..8], place).unwrap();
    }

    /// Cuts the file, or makes it longer.
    pub(super) fn resize(&self, slots: usize) {
        self.file.set_len((HEADER_SIZE + slots * SLOT_SIZE) as u64).unwrap();
    }
}

fn with_times(times: impl IntoIterator<Item = (usize, u64)>) -> Vec<u8> {
    let mut bytes = sample();
    for (index, time) in times {
        let slot = &mut bytes[HEADER_SIZE + index * SLOT_SIZE..][..SLOT_SIZE];
        slot[8..16].copy_from_slice(&time.to_le_bytes());
        commit(index as u64, slot);
    }
    bytes
}

#[test]
fn each_problem_has_its_own_words() {
    let good = sample();
    let changed = |offset: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[offset] = value;
        bytes
    };
    let version = changed(offset_of!(format::Header, version), 9);
    let unreleased = [&format::UNRELEASED_MAGIC[..], &good[8..]].concat();
    for (bytes, words) in [
        (&b""[..], "no header yet"),
        (&vec![0; 1 << 20], "no header yet"),
        (b"hello", "not a vramshim journal"),
        (&good[..5000], "cut short (5000 bytes"),
        (&changed(0, b'X'), "not a vramshim journal"),
        (&unreleased, "older, unreleased build"),
        (&unreleased[..8], "older, unreleased build"),
        (&version, "format 9"),
        (&changed(offset_of!(format::Header, record_size), 9), "damaged"),
        (&changed(offset_of!(format::Header, ready), 0), "no header yet"),
    ] {
        let told = problem(bytes);
        assert!(told.contains(words), "{told}: {words}");
    }
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none");
    for (path, words) in [(folder.path(), "not a file"), (&none, "cannot be read")] {
        assert!(Journal::open(path).err().unwrap().to_string().contains(words));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_times_are_they_ascend(
        times in prop::collection::vec(prop_oneof![0u64..300, Just(u64::MAX), any::<u64>()], EVENTS as usize),
        slots in 1usize..120,
    ) {
        let bytes = with_times(times.iter().copied().enumerate());
        let mut expected: Vec<u64> = (0..EVENTS).collect();
        expected.sort_by_key(|&index| (times[index as usize], index));
        prop_assert_eq!(order(&bytes, slots), expected);
    }

}

#[test]
fn a_header_that_was_read_while_a_part_of_it_was_written_is_read_again() {
    const PAGE: usize = 4096;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 0);
    let head = || std::fs::read(journal.path()).unwrap()[..HEADER_SIZE].to_vec();
    let before = head();
    journal.ended(3);
    let after = head();
    // The first page was read before the process ended, and the other pages after it.
    let torn = [&before[..PAGE], &after[PAGE..]].concat();
    assert_eq!(parse_header(&torn).unwrap().damaged, ["end"]);
    let mut reads = [&torn, &after].into_iter();
    let header = read_settled(|| parse_header(reads.next().unwrap())).unwrap();
    assert!(header.damaged.is_empty() && header.ended);
    // What stays damaged is told.
    let header = read_settled(|| parse_header(&torn)).unwrap();
    assert_eq!(header.damaged, ["end"]);
}
