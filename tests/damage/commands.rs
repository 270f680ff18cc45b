//! Damaged journals and what lies beside them, for the commands that make something of a journal: `export`, `replay`.

use std::fs;
use std::path::Path;
use support::assert_says;

use base::api::{Api, Class};
use journal::format::Device;
use journal::format::{Allocation, Event, Library, RawRecord};
use journal::writer::{About, PastJournal};

use super::{journal, journal_of, look, run};

fn write(path: &Path, records: &[RawRecord]) {
    let device = Device {
        total_memory: 80 << 30,
        ..Device::default()
    };
    let mut past = PastJournal::create(path, &About::default(), &[device]).unwrap();
    for (time_ns, &record) in (1..).zip(records) {
        past.push(time_ns, 1, record).unwrap();
    }
    past.finish(Some((1, 1_000_000))).unwrap();
}

fn alloc(address: u64, bytes: u64, device: i16, class: Class) -> RawRecord {
    let allocation = Allocation {
        class: class.into(),
        address,
        requested: bytes,
        allocated: bytes,
        reserved: Some(bytes),
        cache: Library::NotKnown,
        stream: 0,
    };
    Event::Alloc(allocation).encode(Api::cudaMalloc, device)
}

fn failed(bytes: u64) -> RawRecord {
    let event = Event::AllocFailed {
        class: Class::Linear.into(),
        requested: bytes,
        result: 2,
        over_limit: false,
        guard: None,
    };
    event.encode(Api::cudaMalloc, 0)
}

/// Physical memory has no address of its own, so a snapshot makes addresses up for all of it.
#[test]
fn a_snapshot_of_more_memory_than_there_are_addresses_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.vraj");
    let huge = [1, 2, 3].map(|handle| alloc(handle, 1 << 56, 0, Class::Vmm));
    let pool = Event::PoolReserved {
        class: Class::Async.into(),
        reserved: 1 << 56,
        used: 0,
    };
    let small = alloc(1 << 40, 4096, 0, Class::Linear);
    write(
        &path,
        &[&huge[..], &[small, pool.encode(Api::cudaMallocAsync, 0)]].concat(),
    );
    let out = folder.path().join("out.pickle");
    let arguments = ["--to", "torch-snapshot", "-o", out.to_str().unwrap()];
    let seen = run("export", &path, &arguments, "huge");
    assert_eq!(seen.code, 0, "{}", seen.said);
    assert!(
        out.metadata().unwrap().len() > 0 && seen.said.contains("(2 events)"),
        "what fits is there: {}",
        seen.said
    );
}

#[test]
fn records_that_cannot_be_true_are_told_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("impossible.vraj");
    let good = alloc(1 << 40, 4096, 0, Class::Linear);
    let bad = [
        alloc(2 << 40, u64::MAX, 0, Class::Linear),
        alloc(u64::MAX - 10, 4096, 0, Class::Linear),
        alloc(3 << 40, 4096, 4095, Class::Linear),
    ];
    write(&path, &[&[good], &bad[..], &[failed(1 << 63)]].concat());
    let page: serde_json::Value = serde_json::from_str(&look(&path, &["--json"], "impossible").out).unwrap();
    let job = &page["jobs"][0];
    assert_eq!((&job["damaged"], &job["events"]), (&3.into(), &2.into()));
    assert_eq!(job["live"].as_array().unwrap().len(), 1);
    assert_eq!(
        job["failed"][0]["last_size"],
        1u64 << 63,
        "a failed request may be as large as it likes"
    );
    let said = run("why", &path, &[], "impossible").out;
    assert!(
        said.starts_with("Damaged journal: ") && said.contains("Damaged: records"),
        "{said}"
    );
    for format in ["csv", "perfetto", "parquet", "torch-snapshot", "collapsed"] {
        let out = folder.path().join(format);
        let seen = run("export", &path, &["--to", format, "-o", out.to_str().unwrap()], format);
        assert_eq!(seen.code, 0, "{format}: {}", seen.said);
        assert_says(&seen.said, "left out 3 damaged records");
    }
    let fleet = folder.path().join("fleet");
    let arguments = ["--to", "parquet", "--partition", "-o", fleet.to_str().unwrap()];
    let seen = run("export", &path, &arguments, "a fleet");
    assert_eq!(seen.code, 0, "{}", seen.said);
    assert!(seen.said.contains("left out 3 damaged records"), "{}", seen.said);
    let said = run("replay", &path, &[], "impossible").out;
    assert!(said.contains("left out 3 damaged records"), "{said}");
}

/// The work must not grow with the bytes of a request: 2^50 bytes are 50 million handles of 20 MiB.
#[test]
fn a_request_of_a_pebibyte_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    for (name, record) in [
        ("big", alloc(1 << 40, 1 << 50, 0, Class::Linear)),
        ("oom", failed(1 << 50)),
    ] {
        let path = folder.path().join(format!("{name}.vraj"));
        write(&path, &[alloc(1 << 41, 4096, 0, Class::Linear), record]);
        let seen = run("replay", &path, &["--json"], name);
        assert_eq!(seen.code, 0, "{name}: {}", seen.said);
        let page: serde_json::Value = serde_json::from_str(&seen.out).unwrap();
        let rows = page["strategies"].as_array().unwrap();
        let expandable = rows.iter().find(|row| row["name"] == "torch_expandable").unwrap();
        let smallest = expandable["smallest_device"].as_u64().unwrap();
        assert!(smallest >= 1 << 50, "{name}: {smallest}");
    }
}

/// What lies beside one journal costs only what it holds.
#[test]
fn a_folder_is_exported_although_files_beside_its_journals_are_bad() {
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = journal(folder.path(), 100);
    let of = |name: &str| folder.path().join(name);
    let out = of("out.collapsed");
    let arguments = [
        "--force",
        "--to",
        "collapsed",
        "--at",
        "end",
        "-o",
        out.to_str().unwrap(),
    ];
    let live_bytes = || {
        let lines = fs::read_to_string(&out).unwrap();
        let bytes = lines
            .lines()
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        bytes.sum::<u64>()
    };
    assert_eq!(run("export", folder.path(), &arguments, "one journal").code, 0);
    let one = live_bytes();
    assert!(one > 0);
    for (rank, name) in [(1, "a"), (2, "b"), (3, "c")] {
        let elsewhere = tempfile::tempdir().unwrap();
        let (path, _) = journal_of(elsewhere.path(), 100, rank);
        fs::copy(path, of(&format!("{name}.vraj"))).unwrap();
    }
    fs::create_dir(of("a.tensors")).unwrap();
    fs::create_dir(of("b.stacks")).unwrap();
    fs::write(of("c.tensors"), [0xff; 5000]).unwrap();
    let seen = run("export", folder.path(), &arguments, "bad files");
    assert_eq!(seen.code, 0, "{}", seen.said);
    for name in ["a.tensors", "b.stacks", "c.tensors"] {
        assert!(seen.said.contains(&format!("{name}: cannot be read")), "{}", seen.said);
    }
    assert_eq!(live_bytes(), 4 * one);
    fs::write(of("d.vraj"), &bytes[..1000]).unwrap();
    let seen = run("export", folder.path(), &arguments, "a bad journal");
    assert_eq!((seen.code, live_bytes()), (1, 4 * one), "{}", seen.said);
    assert!(seen.said.contains("d.vraj: cut short"), "{}", seen.said);
}
