//! A job that is killed at any moment leaves a journal that can be read and that holds every event before the kill.
//!
//! The job writes each event into a pipe after the call has returned. For each thread the journal must hold all of
//! these events in their order, and at most one more: the event of the call that was running at the kill. A free that
//! was running at the kill may be missing although another thread already got its memory. The journal then shows an
//! unfinished slot. Each thread has at most one unfinished slot.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use journal::format::Event;
use journal::reader::Journal;
use serde_json::json;
use support::{Fields, Job, STRATEGIES, assert_fields, client, inspect, journals_in, live, tests};

const MOMENTS: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    freed: bool,
    address: u64,
    size: u64,
}

type ByThread = BTreeMap<u32, Vec<Told>>;

/// The events of the complete lines in the pipe, by thread.
fn through_the_pipe(text: &str) -> ByThread {
    let mut threads = ByThread::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [thread, what, address, size] = parts[..] else {
            panic!("a torn line: {line:?}")
        };
        let told = Told {
            freed: what == "f",
            address: address.parse().unwrap(),
            size: size.parse().unwrap(),
        };
        threads.entry(thread.parse().unwrap()).or_default().push(told);
    }
    threads
}

fn kill_at(moment: u64) -> usize {
    let strategy = STRATEGIES[moment as usize % STRATEGIES.len()];
    let threads = moment / 4 % 4 + 1;
    // The kill comes within 30 ms, and early in most cases, because at the start the file grows and threads begin.
    let spread = RandomState::new().build_hasher().finish() % 1000;
    let after = Duration::from_micros(spread * spread * 30 / 1000);
    let context = format!("moment {moment}, {strategy:?}, {threads} threads, killed after {after:?}");
    let path = client("sigkill/steady.c", "steady", &["libcuda.so.1"]);
    let job = Job::new(path)
        .strategy(strategy)
        .args([threads.to_string(), moment.to_string()]);
    let (mut child, folder) = job.start();
    let mut pipe = child.stdout.take().unwrap();
    // The journal exists when the first event has arrived.
    let mut first = [0u8; 1];
    let read = pipe.read_exact(&mut first);
    let mut text = read.map_or_else(|_| String::new(), |()| char::from(first[0]).into());
    let rest = std::thread::spawn(move || {
        pipe.read_to_string(&mut text).expect("the pipe");
        text
    });
    std::thread::sleep(after);
    child.kill().expect("a kill");
    let status = child.wait().expect("a child");
    let told = through_the_pipe(&rest.join().unwrap());
    assert_eq!(status.signal(), Some(9), "{context}: the job ended before the kill");

    let journals = journals_in(&folder.path().join("journals"));
    assert_eq!(journals.len(), 1, "{context}");
    let mut written = ByThread::new();
    let mut held = BTreeMap::new();
    let mut given_out_again = 0;
    for record in Journal::open(&journals[0]).expect("a journal").records() {
        let record = record.expect("a record");
        let (freed, allocation) = match record.event {
            Event::Alloc(allocation) => (false, allocation),
            Event::Free { allocation, .. } => (true, allocation),
            Event::AllocFailed { .. } | Event::FreeFailed { .. } => panic!("{context}: {record:?}"),
            _ => continue,
        };
        let (address, size) = (allocation.address, allocation.requested);
        match freed {
            false => given_out_again += u64::from(held.insert(address, size).is_some()),
            true => assert_eq!(held.remove(&address), Some(size), "{context}: {record:?}"),
        }
        let told = Told { freed, address, size };
        written.entry(record.tid).or_default().push(told);
    }
    for (thread, told) in &told {
        let written = written.get(thread).map_or(&[][..], Vec::as_slice);
        let (there, said) = (written.len(), told.len());
        let is_whole = (said..=said + 1).contains(&there);
        assert!(is_whole, "{context}: {there} of {said} events");
        assert_eq!(&written[..said], told, "{context}: thread {thread}");
    }

    let job = &inspect(&journals[0])[0];
    assert_fields(job, json!({"ended": "without_exit", "events_lost": 0}), &context);
    let again = &job["anomaly_kinds"]["same_address"];
    assert_eq!(*again, given_out_again, "{context}: {job}");
    let unfinished = job["unfinished"].number();
    assert!(job["anomalies"] == 0 || unfinished > 0, "{context}: {job}");
    assert!(unfinished <= threads, "{context}: {job}");
    let sizes: Vec<u64> = held.into_values().collect();
    let requested = job["devices"][0]["requested"]["current"].number();
    assert_eq!(requested, sizes.iter().sum::<u64>(), "{context}");
    let mut expected = BTreeMap::new();
    for size in sizes {
        *expected.entry(("cuMemAlloc".to_owned(), size, 0)).or_default() += 1;
    }
    assert_eq!(live(&job["live"]), expected, "{context}");
    told.values().map(Vec::len).sum()
}

fn kill_at_all(moments: impl Iterator<Item = u64>) {
    let events: Vec<usize> = moments.map(kill_at).collect();
    let (least, most) = (events.iter().min().unwrap(), events.iter().max().unwrap());
    println!("{} kills, after {least} to {most} events", events.len());
    assert!(*most > 500, "the kills were all early");
}

tests! {
    every_event_before_a_kill_is_there => kill_at_all((0..MOMENTS).filter(|moment| moment % 8 < 4));
    every_event_before_a_kill_is_there_with_more_threads => kill_at_all((0..MOMENTS).filter(|moment| moment % 8 >= 4));
}

#[test]
fn an_idle_job_lives_until_it_is_killed_and_not_until_its_last_call() {
    let path = client("support/clients/lifecycle.c", "lifecycle", &["libcuda.so.1"]);
    let (mut child, folder) = Job::new(path).args(["idle"]).start();
    let mut said = [0; 5];
    let output = child.stdout.as_mut().unwrap();
    output.read_exact(&mut said).expect("the job allocated");
    let journals = journals_in(&folder.path().join("journals"));
    let alive_ns = || Journal::open(&journals[0]).expect("a journal").alive_ns();
    // The job makes no call meanwhile, so only a sign of life can raise this.
    let wanted_ns = alive_ns() + 1_000_000_000;
    let patience = Instant::now() + Duration::from_secs(60);
    while alive_ns() < wanted_ns {
        assert!(Instant::now() < patience, "no sign of life");
        std::thread::sleep(Duration::from_millis(20));
    }
    let before_ns = alive_ns();
    child.kill().expect("a kill");
    child.wait().expect("a child");

    let job = &inspect(&journals[0])[0];
    assert_eq!(job["ended"], "without_exit");
    assert!(job["duration_ns"].number() >= before_ns, "{job}");
    let journal = Journal::open(&journals[0]).unwrap();
    // The last call was long before.
    let last_ns = journal.records().map(|record| record.unwrap().time_ns).max();
    assert!(last_ns.unwrap() < before_ns - 500_000_000);
}
