//! Tests of `vramshim serve`: its figures are those of the ledger while jobs run, counters never fall, no client without
//! the token is answered, and no file and no client ends it.

mod access;
mod accounts;
mod moved;
mod pages;
mod server;
mod strangers;
mod verdicts;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use journal::format::{HEADER_SIZE, SLOT_SIZE};
use server::{Served, Text};
use support::made::Made;
use support::{Fields, PASSTHROUGH, STRATEGIES, inspect, left_out, vramshim, vramshim_with};

use crate::top::paced::{Paced, job};

/// The text that `serve --once` prints for a folder, and what it says.
fn once(folder: &Path, more: &[&str]) -> (Text, String) {
    let output = vramshim_with(&[&["serve", "--once"], more, &["--dir"]].concat(), [folder]).ok();
    (Text::of(&output.text), output.said)
}

fn assert_like_the_ledger(text: &Text, folder: &Path, context: &str) {
    let pages = inspect(folder);
    let page = &pages[0];
    let pid = page["pid"].to_string();
    for device in page["devices"].list() {
        let number = match device["device"].as_i64() {
            Some(-1) => "host".to_owned(),
            number => number.unwrap().to_string(),
        };
        let labels = [("pid", pid.as_str()), ("device", number.as_str())];
        let current = |figure: &str| device[figure]["current"].number();
        // The total of a device leaves out ranges of addresses, which are requests all the same.
        let requests = device["classes"].list().iter().map(|class| class["count"].number());
        let pairs = [
            ("vramshim_allocated_bytes", current("allocated")),
            ("vramshim_reserved_bytes", current("reserved")),
            ("vramshim_allocations_total", requests.sum()),
        ];
        for (metric, truth) in pairs {
            let told = text.value(metric, &labels);
            assert_eq!(told, Some(truth as f64), "{context}: {metric} of device {number}");
        }
        let failures = text.sum("vramshim_allocation_failures_total", &labels);
        assert_eq!(
            failures,
            device["failed_calls"].number() as f64,
            "{context}: device {number}"
        );
    }
}

#[test]
fn the_figures_are_those_of_the_ledger_at_every_scrape() {
    for (seed, strategy) in STRATEGIES.into_iter().enumerate() {
        let job = job(strategy, seed as u64 + 3, 2).env("RANK", "7");
        let mut job = Paced::start_as(job.env("POD_NAME", "train-3").env("POD_NAMESPACE", "team"));
        job.tell("1");
        let journals = job.member.folder.path().join("journals");
        let served = Served::start(&journals, &[]);
        for moment in 0..5 {
            job.tell(if moment == 2 { "fail" } else { "400" });
            let text = served.scrape();
            let context = format!("{strategy:?}, moment {moment}");
            assert_like_the_ledger(&text, &journals, &context);
            let pid = job.pid().to_string();
            let pod = ("job_pod", "team/train-3");
            let labels = [("pid", pid.as_str()), ("rank", "7"), ("strategy", strategy.name), pod];
            assert_eq!(text.value("vramshim_process_running", &labels), Some(1.0), "{context}");
            // Answers within half a second are the same.
            std::thread::sleep(Duration::from_millis(600));
        }
        let text = served.scrape();
        assert!(text.sum("paddle_gpu_malloc_failed_total", &[]) >= 1.0);
        let (whole, _) = once(&journals, &[]);
        assert_like_the_ledger(&whole, &journals, "once");
    }
}

/// A job that runs out of memory and ends before the first request.
fn dies(folder: &Path) {
    let job = crate::deaths::job("larger").strategy(PASSTHROUGH);
    assert_eq!(job.env("VRAMSHIM_DIR", folder).run().status.code(), Some(1));
}

#[test]
fn the_series_of_an_ended_process_leave_and_the_counters_of_the_node_stay() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--keep-ended", "20s"]);
    assert_eq!(served.scrape().value("paddle_gpu_malloc_failed_total", &[]), Some(0.0));
    dies(folder.path());
    let until = Instant::now() + Duration::from_secs(120);
    let (mut was_there, mut counted) = (false, 0.0);
    loop {
        let text = served.scrape();
        let failed = text.sum("paddle_gpu_malloc_failed_total", &[]);
        assert!(failed >= counted, "a counter fell: {failed} after {counted}");
        counted = failed;
        let is_there = text.value("vramshim_process_running", &[("job_name", "deaths")]);
        assert_ne!(is_there, Some(1.0), "the process has ended");
        was_there |= is_there.is_some();
        if was_there && is_there.is_none() {
            break;
        }
        assert!(Instant::now() < until, "the series are still there");
        std::thread::sleep(Duration::from_millis(300));
    }
    let text = served.scrape();
    assert!(counted >= 1.0);
    let failed = [("kind", "out_of_memory")];
    assert_eq!(
        text.value("vramshim_node_allocation_failures_total", &failed),
        Some(counted)
    );
    assert_eq!(
        text.value("vramshim_node_processes_ended_total", &[("how", "failed")]),
        Some(1.0)
    );
}

#[test]
fn folders_of_a_folder_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().to_str().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    dies(&folder.path().join("team_one"));
    dies(&elsewhere.path().join("team_two"));
    std::os::unix::fs::symlink(elsewhere.path().join("team_two"), folder.path().join("link")).unwrap();
    let nothing = tempfile::tempdir().unwrap();
    let seen = || {
        once(nothing.path(), &["--dir", base])
            .0
            .sum("vramshim_node_processes", &[])
    };
    assert_eq!(seen(), 1.0, "a link leads nowhere");
    dies(&folder.path().join("team_three"));
    assert_eq!(seen(), 2.0);

    let output = vramshim(&["serve", "--once", "--dir", "/nowhere"]);
    assert_eq!(output.code, Some(1));
    assert!(output.said.contains("/nowhere"));
}

#[test]
fn what_happened_before_the_start_is_not_counted_for_the_node() {
    let folder = tempfile::tempdir().unwrap();
    dies(folder.path());
    let served = Served::start(folder.path(), &[]);
    let text = served.scrape();
    assert_eq!(text.value("paddle_gpu_malloc_failed_total", &[]), Some(0.0));
    assert!(text.sum("vramshim_allocation_failures_total", &[("job_name", "deaths")]) >= 1.0);
    let (once, _) = once(folder.path(), &[]);
    assert!(once.sum("paddle_gpu_malloc_failed_total", &[]) >= 1.0);
}

#[test]
fn the_pod_is_that_of_the_environment() {
    let cases = [
        ("VRAMSHIM_POD=team/train-0\0POD_NAME=other\0", Some("team/train-0")),
        ("POD_NAME=train-1\0POD_NAMESPACE=team\0", Some("team/train-1")),
        ("POD_NAME=train-2\0KUBERNETES_SERVICE_HOST=10.0.0.1\0", Some("train-2")),
        (
            "KUBERNETES_SERVICE_HOST=10.0.0.1\0POD_NAMESPACE=team\0",
            Some("team/node1"),
        ),
        ("POD_NAMESPACE=team\0", None),
        ("POD_NAME=\0", None),
    ];
    // Each value of the label, in the metrics of a job with this environment.
    let pods = |environment: &str| -> BTreeSet<String> {
        let folder = tempfile::tempdir().unwrap();
        let made = Made::with(folder.path(), 1, 1, environment, "").unwrap();
        made.end(Some(0)).unwrap();
        let (text, _) = once(folder.path(), &[]);
        let labels = text.0.into_iter().flat_map(|(_, labels, _)| labels);
        let pods = labels.filter(|(name, _)| name == "job_pod");
        pods.map(|(_, pod)| pod).collect()
    };
    for (environment, pod) in cases {
        assert!(pods(environment).iter().eq(pod), "{environment}");
    }
    let long = pods(&format!("VRAMSHIM_POD={}\n\"\0", "x".repeat(1000)));
    assert!(long.len() == 1 && long.iter().all(|pod| pod.len() <= 103), "bounded");
}

/// The journal of a process that began at this second, made so many allocations of 1 MiB, and ended well.
fn allocates(folder: &Path, pid: u32, began_s: u64, count: u32) -> PathBuf {
    let mut made = Made::new(folder, pid, began_s).unwrap();
    for _ in 0..count {
        made.alloc(0, 1 << 20, 0).unwrap();
    }
    made.end(Some(0)).unwrap()
}

/// Journals of three processes with some allocations.
fn three(folder: &Path) {
    for pid in 1..=3 {
        allocates(folder, pid, u64::from(pid), pid);
    }
}

#[test]
fn processes_beyond_the_most_count_for_the_node() {
    const MOST: u32 = 1000;
    let folder = tempfile::tempdir().unwrap();
    for pid in 1..=MOST + 2 {
        allocates(folder.path(), pid, u64::from(pid), 1);
    }
    let (text, _) = once(folder.path(), &[]);
    assert_eq!(text.sum("vramshim_allocations_total", &[]), f64::from(MOST));
    let all = text.value("vramshim_node_allocations_total", &[]);
    assert_eq!(all, Some(f64::from(MOST + 2)));
}

#[test]
fn a_folder_with_any_number_of_files_leaves_the_others_their_share() {
    const FILES: usize = 66_000;
    let folder = tempfile::tempdir().unwrap();
    for number in 0..FILES {
        std::fs::File::create(folder.path().join(format!("{number}.vraj"))).unwrap();
    }
    let quiet = folder.path().join("quiet");
    std::fs::create_dir(&quiet).unwrap();
    three(&quiet);
    let (text, _) = once(folder.path(), &[]);
    assert_eq!(text.value("vramshim_node_allocations_total", &[]), Some(6.0));
    let left_out = text.value("vramshim_serve_unreadable", &[("what", "left_out")]);
    assert_eq!(left_out, Some((FILES + 3 - (1 << 16)) as f64));
}

#[test]
fn a_user_with_any_number_of_files_leaves_the_other_users_of_the_folder_their_share() {
    let folder = tempfile::tempdir().unwrap();
    // The oldest files of the folder.
    three(folder.path());
    for number in 0..66_000 {
        let path = folder.path().join(format!("{number}.vraj"));
        std::fs::File::create(&path).unwrap();
        if std::os::unix::fs::chown(&path, Some(65533), None).is_err() {
            return left_out("files of another user: this user cannot make them");
        }
    }
    let (text, _) = once(folder.path(), &[]);
    assert_eq!(text.value("vramshim_node_allocations_total", &[]), Some(6.0));
}

#[test]
fn damaged_journals_cost_a_message_each_and_a_count() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path());
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("text.vraj"), "no journal at all").unwrap();
    std::fs::create_dir(at("folder.vraj")).unwrap();
    let pipe = std::ffi::CString::new(at("pipe.vraj").to_str().unwrap()).unwrap();
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let good = std::fs::read(at("node1-2-1.vraj")).unwrap();
    std::fs::write(at("short.vraj"), &good[..5000]).unwrap();
    // The name of the job changes, so the checksum does not match. A line feed must not make a line of its own.
    // The process is another one: a copy of a journal counts as none.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut wrong = std::fs::read(allocates(elsewhere.path(), 4, 4, 2)).unwrap();
    let job = wrong.windows(5).position(|window| window == b"made\0").unwrap();
    wrong[job..job + 4].copy_from_slice(b"\n\"\\}");
    std::fs::write(at("wrong.vraj"), wrong).unwrap();
    // The last record of another process is damaged.
    let path = allocates(elsewhere.path(), 5, 5, 3);
    let mut record = std::fs::read(&path).unwrap();
    record[HEADER_SIZE + 2 * SLOT_SIZE + 20] ^= 1;
    std::fs::write(at("record.vraj"), record).unwrap();
    let (text, said) = once(folder.path(), &[]);
    assert_eq!(text.value("vramshim_serve_damaged_total", &[]), Some(4.0), "{said}");
    assert!(said.contains("record.vraj: left out 1 damaged record; "), "{said}");
    assert_eq!(
        text.value("vramshim_allocations_total", &[("journal", "record")]),
        Some(2.0)
    );
    for name in ["text.vraj", "short.vraj", "wrong.vraj", "record.vraj"] {
        assert_eq!(said.lines().filter(|line| line.contains(name)).count(), 1, "{said}");
    }
    let odd = [("journal", "wrong"), ("job_name", " \"\\}"), ("device", "0")];
    assert_eq!(text.value("vramshim_allocations_total", &odd), Some(2.0));
    // A server goes on while journals come, vanish and are cut.
    let served = Served::start(folder.path(), &["--keep-ended", "1h"]);
    served.scrape();
    std::fs::remove_file(at("node1-1-1.vraj")).unwrap();
    std::fs::write(at("node1-2-1.vraj"), "").unwrap();
    std::thread::sleep(Duration::from_millis(600));
    served.scrape();
}

#[test]
fn a_process_counts_once_and_no_two_series_have_the_same_labels() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    three(one.path());
    let copied = |from: &str, to: &Path| std::fs::copy(one.path().join(from), to).unwrap();
    copied("node1-2-1.vraj", &one.path().join("copy.vraj"));
    copied("node1-2-1.vraj", &two.path().join("node1-2-1.vraj"));
    // Another process whose journal has the same name and the same labels.
    allocates(two.path(), 3, 77, 1);
    // `Text::of` fails if a series is there twice.
    let (text, _) = once(one.path(), &["--dir", two.path().to_str().unwrap()]);
    assert_eq!(text.value("vramshim_node_allocations_total", &[]), Some(7.0));
    assert_eq!(text.sum("vramshim_node_processes", &[]), 4.0);
    assert_eq!(
        text.sum("vramshim_allocations_total", &[("pid", "2"), ("device", "0")]),
        2.0
    );
    let second = text.value(
        "vramshim_allocations_total",
        &[("pid", "3"), ("number", "2"), ("device", "0")],
    );
    assert!(second == Some(1.0) || second == Some(3.0), "{second:?}");
    assert_eq!(
        text.sum("vramshim_allocations_total", &[("pid", "3"), ("device", "0")]),
        4.0
    );
}

#[test]
fn the_text_file_is_replaced_at_once() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path());
    let before = std::fs::read_dir(folder.path()).unwrap().count();
    let file = folder.path().join("vramshim.prom");
    std::fs::write(&file, "old").unwrap();
    vramshim_with(&["serve", "--dir"], [folder.path(), "--textfile".as_ref(), &file]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("# TYPE vramshim_allocations_total counter\n"), "{text}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), before + 1, "no temporary file is left: {left:?}");
}
