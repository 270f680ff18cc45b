//! Tests of the journal's writer in jobs that are killed, run out of disk space, fork, exec, or close descriptors that
//! are not theirs. Such a job is a second process: this test program started again in a role.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use support::assert_says;

use base::api::{Api, Class, FIRST_RUNTIME_API};
use journal::format::Device;
use journal::format::{Allocation, Event, HEADER_SIZE, Library, MAX_ROUTES, RawRecord, Route, RouteEntry, SLOT_SIZE};
use journal::reader::{self, State};
use journal::writer::{Journal, Options, Outcome};

mod clocks;
mod descriptors;
mod full;
mod threads;

const ROLE: &str = "JOURNAL_TEST_ROLE";
const FOLDER: &str = "JOURNAL_TEST_FOLDER";

fn options(folder: &Path, max_bytes: u64) -> Options {
    Options {
        directory: folder.to_owned(),
        strategy: "passthrough".into(),
        job: "test".into(),
        max_bytes,
        command_line: b"test".to_vec(),
        environment: Vec::new(),
    }
}

fn create(folder: &Path, max_bytes: u64) -> Journal {
    Journal::create(&options(folder, max_bytes)).unwrap_or_else(|error| panic!("{error}"))
}

/// An event whose other fields all follow from its number, so that a mixed-up record is noticed. It is one that can be true.
fn numbered(number: u64) -> Event {
    Event::Alloc(Allocation {
        class: Class::Linear.into(),
        address: number,
        requested: number.wrapping_mul(3),
        allocated: !number >> 8,
        reserved: Some(number ^ 0x5555),
        cache: Library::NotKnown,
        stream: 0,
    })
}

fn event(number: u64) -> RawRecord {
    numbered(number).encode(Api::cudaMalloc, 0)
}

/// The numbers of the events in a journal, in order, and the count of unfinished slots. Checks that each event is whole
/// and not earlier than the event before it.
fn numbers(journal: &reader::Journal) -> (Vec<u64>, u64) {
    let mut records = journal.records();
    let mut before = 0;
    let numbers = records
        .by_ref()
        .map(|found| {
            let record = found.unwrap();
            assert!(record.tid > 0);
            assert!(record.time_ns >= before);
            before = record.time_ns;
            let Event::Alloc(allocation) = record.event else {
                panic!("{record:?}")
            };
            assert_eq!(
                (record.api, record.device, record.event),
                (Api::cudaMalloc.into(), 0, numbered(allocation.address))
            );
            allocation.address
        })
        .collect();
    (numbers, records.unfinished())
}

fn open(path: &Path) -> reader::Journal {
    reader::Journal::open(path).unwrap_or_else(|error| panic!("{error}"))
}

fn journals(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "vraj"));
    found.sort();
    found
}

/// Starts this test program again in a role.
fn in_role(role: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "journal::in_a_role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

fn start(role: &str, folder: &Path) -> Child {
    in_role(role, folder).spawn().unwrap()
}

/// The lines that a role prints, until its output ends.
fn said(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    lines.filter_map(|line| Some(line.split_once("SAID ")?.1.to_owned()))
}

fn say(what: &str) {
    let line = format!("\nSAID {what}\n");
    let mut out = std::fs::File::from(
        std::os::fd::AsFd::as_fd(&std::io::stdout())
            .try_clone_to_owned()
            .unwrap(),
    );
    // One call writes the whole line, so lines of several threads do not mix.
    let _ = out.write_all(line.as_bytes());
}

fn wait_for_the_test() {
    let _ = std::io::stdin().read(&mut [0]);
}

fn finish(mut child: Child) {
    drop(child.stdin.take());
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn it_shows_how_functions_were_looked_up() {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    let read = || open(journal.path()).header().clone();
    assert!(
        read()
            .routes
            .iter()
            .all(|handed_out| *handed_out == reader::HandedOut::default())
    );

    let counted: [RouteEntry; MAX_ROUTES] = std::array::from_fn(|_| RouteEntry {
        handed_out: 0.into(),
        driver: 0.into(),
        runtime: 0.into(),
    });
    let entry = &counted[Route::GetProcAddress as usize];
    entry.handed_out.store(7, Relaxed);
    entry.driver.store(1 << Api::cuMemAlloc.number(), Relaxed);
    entry
        .runtime
        .store(1 << (Api::cudaFree.number() - FIRST_RUNTIME_API), Relaxed);
    journal.routes(&counted);
    journal.unknown_free();
    journal.unknown_free();

    let header = read();
    assert_eq!(header.unknown_frees, 2);
    for route in Route::ALL {
        let shown = header.routes[route as usize];
        let this = route == Route::GetProcAddress;
        assert_eq!(shown.times, if this { 7 } else { 0 }, "{route:?}");
        for &api in Api::ALL {
            let handed_out = this && matches!(api, Api::cuMemAlloc | Api::cudaFree);
            assert_eq!(shown.has(api.number()), handed_out, "{route:?} {api:?}");
        }
    }
}

/// The second process runs this test. Without a role the test does nothing.
#[test]
fn in_a_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    match role.as_str() {
        "writer" => threads::writer(&folder),
        "limited" => limited(&folder),
        "small_disk" => small_disk(&folder),
        "forker" => forker(&folder),
        "execer" => execer(&folder),
        "closer" => descriptors::closer(&folder),
        "own_reader" => descriptors::own_reader(&folder),
        "once" => assert_eq!(create(&folder, 1 << 20).write(event(2)), Outcome::Written),
        other => panic!("no role {other}"),
    }
}

#[test]
fn a_claim_keeps_its_place_whenever_it_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let journal = create(folder.path(), 1 << 20);
    let claim = journal.claim();
    journal.write(event(2));
    let unused = journal.claim();
    journal.write(event(3));
    journal.commit(claim, event(1));
    let _ = unused;
    assert_eq!(numbers(&open(journal.path())), (vec![1, 2, 3], 1));
}

#[test]
fn files_are_private_and_folders_made() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let journal = create(&folder.path().join("a/b"), 1 << 20);
    assert_eq!(
        std::fs::metadata(journal.path()).unwrap().permissions().mode() & 0o777,
        0o600
    );
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
    let mode = || std::fs::metadata(journal.path()).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o600);
    journal.let_group_read().unwrap();
    assert_eq!(mode(), 0o640);
    assert_eq!(
        std::fs::metadata(journal.path()).unwrap().gid(),
        std::fs::metadata(&folder).unwrap().gid()
    );
}

#[test]
fn errors_name_path_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Journal::create(&options(&file, 1 << 20)).err().unwrap().to_string();
    assert_says(&error, "file");
    assert_says(&error, "create the directory");
    let error = Journal::create(&options(Path::new("/proc/nothing"), 1 << 20))
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("/proc/nothing"), "{error}");
}

/// Writes until an event is lost, and returns the number of events written before.
fn write_until_lost(journal: &Journal) -> u64 {
    (0..1_000_000)
        .take_while(|&number| journal.write(event(number)) == Outcome::Written)
        .count() as u64
}

fn limit_file_size(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the struct outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

fn limited(folder: &Path) {
    let journal = create(folder, 1 << 30);
    limit_file_size((2 << 20) + 100);
    let written = write_until_lost(&journal);
    assert_eq!(written as usize, ((2 << 20) - HEADER_SIZE) / SLOT_SIZE);
    assert_eq!(journal.write(event(0)), Outcome::Lost { first: false });
    limit_file_size(libc::RLIM_INFINITY);
    std::thread::sleep(Duration::from_millis(1100));
    for number in 0..100 {
        assert_eq!(journal.write(event(number)), Outcome::Written);
    }
    say(&written.to_string());
}

#[test]
fn a_file_size_limit_is_a_full_disk_and_not_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start("limited", folder.path());
    let told: Vec<String> = said(&mut child).collect();
    finish(child);
    let journal = open(&journals(folder.path())[0]);
    let (found, unfinished) = numbers(&journal);
    assert_eq!(found.len() as u64, told[0].parse::<u64>().unwrap() + 100);
    assert_eq!((journal.lost(), unfinished), (2, 0));
    assert_eq!(journal.header().lost_errno, libc::EFBIG);
    assert!(journal.header().lost_first_ns > 0);
}

fn small_disk(folder: &Path) {
    let mounted = support::small_disk(folder, 3 << 10, || on_small_disk(folder));
    say(if mounted { "done" } else { "skip" });
}

fn on_small_disk(folder: &Path) {
    let ballast = folder.join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let journal = create(folder, 1 << 30);
    let written = write_until_lost(&journal);
    // Every mapped page has disk space, or SIGBUS would have killed this process by now.
    assert!(
        written as usize * SLOT_SIZE > 3 << 19,
        "{written} events on a disk with 2 MiB free"
    );
    std::fs::remove_file(&ballast).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(journal.write(event(0)), Outcome::Written, "freed space is used");
    let read = open(journal.path());
    assert_eq!((numbers(&read).0.len() as u64, read.lost()), (written + 1, 1));
    assert_eq!(read.header().lost_errno, libc::ENOSPC);

    // Fills the disk to the last page; the write itself fails.
    let _ = std::fs::write(&ballast, vec![1; 4 << 20]);
    let error = Journal::create(&options(folder, 1 << 30))
        .err()
        .expect("no room for a header")
        .to_string();
    assert!(error.contains("No space left"), "{error}");
    assert_eq!(
        journals(folder).len(),
        1,
        "no file is left of a journal that could not be created"
    );
}

#[test]
fn a_full_disk_loses_events_and_not_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start("small_disk", folder.path());
    let told: Vec<String> = said(&mut child).collect();
    finish(child);
    if told[0] == "skip" {
        eprintln!("SKIPPED: a small disk cannot be mounted without the right to mount");
    } else {
        assert_eq!(told[0], "done");
    }
}

fn forker(folder: &Path) {
    let journal = create(folder, 1 << 30);
    journal.write(event(1));
    // Another thread has written, so from here on this thread reserves slots in batches. The child inherits a copy of
    // the reserved slots.
    std::thread::scope(|scope| scope.spawn(|| journal.write(event(2))).join().unwrap());
    journal.write(event(3));
    // SAFETY: every other thread of this process only waits, so the child finds no lock held that it needs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: this is a forked child with one thread, and the journal is not used afterwards.
        unsafe { journal.abandon() };
        let own = create(folder, 1 << 30);
        own.write(event(100));
        own.ended(0);
        // SAFETY: `_exit` ends the child at once and runs no exit handler of the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid for writing.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    for number in 4..=50_000 {
        assert_eq!(journal.write(event(number)), Outcome::Written);
    }
    say(journal.path().to_str().unwrap());
    wait_for_the_test();
}

#[test]
fn a_forked_child_leaves_its_parents_journal_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start("forker", folder.path());
    let mut told = said(&mut child);
    let parents = PathBuf::from(told.next().unwrap());
    let files = journals(folder.path());
    assert_eq!(files.len(), 2);
    for path in files {
        let journal = open(&path);
        let (found, unfinished) = numbers(&journal);
        assert_eq!(unfinished, 0);
        if path == parents {
            assert_eq!(
                journal.state(),
                State::Running,
                "the end of the child dropped the parent's lock"
            );
            assert_eq!(found, (1..=50_000).collect::<Vec<_>>());
        } else {
            assert_eq!((journal.state(), found), (State::Exited(0), vec![100]));
            let parent = journal.header().parent_pid;
            assert_eq!(parent, child.id());
            let mut records = journal.records();
            assert_eq!(
                records.next().unwrap().unwrap().tid,
                journal.header().pid,
                "the child's record has the parent's thread id"
            );
        }
    }
    finish(child);
}

fn execer(folder: &Path) {
    create(folder, 1 << 20).write(event(1));
    let error = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal::in_a_role", "--test-threads=1"])
        .env(ROLE, "once")
        .exec();
    panic!("{error}");
}

#[test]
fn an_execed_program_has_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start("execer", folder.path());
    said(&mut child).for_each(drop);
    // The role and the program that it executed have the same process id.
    finish(child);
    let files = journals(folder.path());
    assert_eq!(files.len(), 2);
    assert!(files[0].to_str().unwrap().ends_with("-1.vraj"), "{files:?}");
    let (second, first) = (open(&files[0]), open(&files[1]));
    assert_eq!((numbers(&first).0, numbers(&second).0), (vec![1], vec![2]));
    assert_eq!(
        (first.header().pid, first.header().start_ticks),
        (second.header().pid, second.header().start_ticks)
    );
    assert_eq!(first.state(), State::Killed);
}
