//! Reports of journals in every state: of a running and of a killed job, a full one, none at all, and of several runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use journal::format::MarkKind;
use serde_json::json;
use support::made::Made;
use support::member::Member;
use support::{Fields, Job, MIB, Runs, assert_fields, client, journals_in};
use tempfile::TempDir;

use super::browser::Browser;
use super::{PANELS, browser, data, job, vramshim};
use crate::deaths::job as dying;

/// The page of these journals, in a browser.
fn open(browser: &mut Browser, folder: &Path, journals: &Path) {
    let page = folder.join("report.html");
    let arguments = [journals.to_str().unwrap(), "-o", page.to_str().unwrap()];
    vramshim(&arguments, folder).ok();
    browser.look(1280, 900, "light");
    browser.open(&page);
    // Some panels have nothing to say of most journals.
    for panel in PANELS
        .iter()
        .filter(|panel| !["space", "replay", "changes"].contains(panel))
    {
        let text = browser.text(&format!("#{panel} .body"));
        assert!(!text.trim().is_empty(), "{panel} is empty");
    }
}

#[test]
fn a_job_that_runs_is_said_to_run() {
    let mut job = Member::start(dying("hold").args([(1u64 << 30).to_string()]));
    assert_eq!(job.answer(), "holds");
    let folder = &job.folder;
    let journals = folder.path().join("journals");
    let process = &data(&journals)["processes"][0];
    assert_eq!(process["trust"]["running"], true);
    assert_eq!(process["ended"], "running");
    assert_eq!(process["devices"][0]["live_at_end"], 1u64 << 30);
    if let Some(mut browser) = browser() {
        open(&mut browser, folder.path(), &journals);
        browser.assert_shows("#trust", &["the process still ran when this was made"]);
        browser.assert_shows("#verdict", &["running, after"]);
        browser.assert_shows("#holders", &["1.00 GiB"]);
    }
}

/// A PyTorch job whose first snapshot comes late: until then nothing tells what is used of its segments.
#[test]
fn live_is_not_known_before_the_first_snapshot() {
    const SEGMENT: u64 = 20 * MIB;
    const SNAPSHOT_NS: u64 = 2_000_000_000;
    let folder = TempDir::new().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    let segment = made.alloc(0, SEGMENT, 0).unwrap();
    made.wait(2 * SNAPSHOT_NS);
    made.mark(1, MarkKind::Instant).unwrap();
    let journal = made.end(Some(0)).unwrap();
    let taken_us = 1_790_000_000_000_000 + SNAPSHOT_NS / 1000;
    let lines = format!(
        "vramshim-pytorch\t1\t70\t2.12.0\tstate\nT\t0\t/x/lib/site-packages/a.py\t1\tf\n\
         S\t{taken_us}\t0\t{segment}\t{SEGMENT}\t0.0\nA\t{taken_us}\t0\t{segment}\t4096\t0\t0\t4096\t0.0\n\
         T\t1\nA\t{taken_us}\t0\t{}\t1024\t0\t1\t1024\t0.0\n\
         D\t{taken_us}\t2\t0\n",
        segment + 4096
    );
    std::fs::write(journal.with_extension("tensors"), lines).unwrap();
    let process = &data(&journal)["processes"][0];
    assert_eq!(process["first_snapshot_ns"], SNAPSHOT_NS);
    // Bytes whose stack has no frames count as bytes without a stack.
    let trust = json!({"stack_bytes": 4096, "no_stack_bytes": {"no Python code, as in autograd, or older than the record": 1024}});
    assert_fields(&process["trust"], trust, "");
    let Some(mut browser) = browser() else { return };
    open(&mut browser, folder.path(), &journal);
    browser.assert_shows("#trust", &["came and went between two of PyTorch's snapshots"]);
    // Dashes join what snapshots show: a row of the chart begins again and again in the colour of live bytes.
    let dashes = browser.value(
        "((chart) => { const { data, width } = chart.getContext('2d').getImageData(0, 0, chart.width, chart.height); \
         const isLive = (_, place) => Number(data[4 * place] < 90 && data[4 * place + 2] > 180); \
         const all = Array.from({ length: data.length / 4 }, isLive).join(''); \
         return Math.max(...all.match(new RegExp(`.{${width}}`, 'g')).map((row) => row.split('01').length)); \
         })(document.querySelector('#timeline canvas'))",
    );
    assert!(dashes.number() > 20, "{dashes}");
    let [left, top, wide, _] = super::chart(&mut browser);
    // The snapshot is in the middle.
    for (share, told) in [
        (0.3, "live not known, reserved 20.0 MiB"),
        (0.7, "live at least 5.00 KiB, reserved 20.0 MiB"),
    ] {
        let place = (left + share * wide, top + 60.0);
        browser.drag(place, place);
        let said = browser.value("document.querySelector('#timeline canvas').getAttribute('aria-valuetext')");
        assert!(said.as_str().unwrap().contains(told), "{said}");
    }
    // At the moment of a snapshot, as at the peak, figures are exact.
    browser.assert_shows("#ledger", &["live at least 5.00 KiB", "cached at most 20.0 MiB"]);
    browser.assert_shows("#holders .asof", &["at least 5.00 KiB live"]);
    let frame = browser.value("document.querySelector('#holders .frames').textContent");
    assert_eq!(frame, "site-packages/a.py:1 in f");
    assert_eq!(browser.value("holders.offsetWidth === timeline.offsetWidth"), true);
    browser.click("#jump-peak");
    browser.assert_shows("#selection", &["live 5.00 KiB"]);
}

#[test]
fn a_job_that_was_killed_is_said_to_have_been_killed() {
    let finished = dying("killed").run();
    let journals = finished.folder.path().join("journals");
    let process = &data(&journals)["processes"][0];
    let (is_running, by_failure) = (&process["trust"]["running"], &process["ended_by_failure"]);
    assert_eq!([is_running, by_failure], [false; 2]);
    assert_eq!(process["devices"][0]["live_at_end"], 4u64 << 30);
    let Some(mut browser) = browser() else { return };
    open(&mut browser, finished.folder.path(), &journals);
    let told = browser.text("#verdict .body");
    assert!(told.starts_with("Ended without exit: killed or crashed"), "{told}");
    let holder = "Largest holder in this process: 4.00 GiB";
    browser.assert_shows("#verdict", &["Next: Look for the end of the process", holder]);
    browser.assert_shows("#holders", &["4.00 GiB"]);
}

/// What is known of the end of a process is its title, also of a copy and of a trace that was imported.
#[test]
fn the_title_says_of_the_end_what_is_known() {
    let folder = TempDir::new().unwrap();
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:01.0,allocate,0x1000,1048576,0\n";
    std::fs::write(folder.path().join("log.csv"), log).unwrap();
    let mut import = Command::new(support::program());
    import.args(["import", "log.csv"]).current_dir(folder.path());
    import.printed().ok();
    let mut job = Member::start(
        dying("hold")
            .args([(1u64 << 30).to_string()])
            .env("VRAMSHIM_CONTROL", "1"),
    );
    assert_eq!(job.answer(), "holds");
    let copy = folder.path().join("copy.vraj");
    let mut dump = Command::new(support::program());
    dump.args(["ctl", &job.pid(), "dump"]).arg(&copy);
    // The job's socket is there a little after its first allocation.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let told = dump.printed();
        if told.code == Some(0) {
            break;
        }
        assert!(Instant::now() < end, "{}", told.said);
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = |exit| {
        let mut made = Made::new(folder.path(), 70 + exit as u32, 0).unwrap();
        made.alloc(0, MIB, 0).unwrap();
        made.end(Some(exit).filter(|exit| *exit < 2)).unwrap()
    };
    let mut browser = browser();
    for (journal, title, is_bad) in [
        (folder.path().join("log.vraj"), "Imported", false),
        (copy, "Running when copied", false),
        (
            journals_in(&job.folder.path().join("journals")).remove(0),
            "Running",
            false,
        ),
        (ended(0), "Ended well", false),
        (ended(1), "Ended early", true),
        (ended(2), "Ended without exit", true),
    ] {
        assert_eq!(data(&journal)["processes"][0]["end_title"], json!([title, is_bad]));
        if let Some(browser) = &mut browser {
            open(browser, folder.path(), &journal);
            let told = "(({ textContent, parentElement }) => [textContent, parentElement.classList.contains('bad')])";
            let told = format!("{told}(document.getElementById('verdict-title'))");
            assert_eq!(browser.value(&told), json!([title, is_bad]));
        }
    }
}

#[test]
fn the_devices_have_as_many_failures_as_the_list_of_them() {
    let folder = TempDir::new().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    // A request that is repeated is one failure.
    for _ in 0..3 {
        made.fail(2048 * MIB).unwrap();
    }
    made.alloc(0, MIB, 0).unwrap();
    made.fail(4096 * MIB).unwrap();
    let journal = made.end(Some(1)).unwrap();
    let process = &data(&journal)["processes"][0];
    assert_eq!(process["failures_in_all"], 2);
    assert_eq!(process["devices"][0]["failures"], 2);
}

#[test]
fn a_range_has_its_own_end_also_if_there_are_too_many_for_the_page() {
    let folder = TempDir::new().unwrap();
    let mut made = Made::new(folder.path(), 70, 0).unwrap();
    made.stack_line(&["N", "1", "epoch"]);
    made.stack_line(&["N", "2", "step"]);
    made.mark(1, MarkKind::Begin).unwrap();
    // Steps of two threads overlap.
    let mut step = |tid, kind| made.of_thread(tid).mark(2, kind).unwrap();
    for _ in 0..2000 {
        for (tid, kind) in [
            (7, MarkKind::Begin),
            (8, MarkKind::Begin),
            (7, MarkKind::End),
            (8, MarkKind::End),
        ] {
            step(tid, kind);
        }
    }
    let journal = made.end(Some(0)).unwrap();
    let process = &data(&journal)["processes"][0];
    assert!(process["marks"].list().len() < 8001, "some are left out");
    let (epochs, steps): (Vec<_>, Vec<_>) = process["ranges"].list().iter().partition(|range| range[0] == "epoch");
    assert_eq!(epochs, [&json!(["epoch", 1_000_000, null, 0])]);
    assert!(steps.len() > 100);
    for step in steps {
        assert_eq!(step[2].number() - step[1].number(), 2_000_000, "{step}");
    }
    if let Some(mut browser) = browser() {
        open(&mut browser, folder.path(), &journal);
    }
}

#[test]
fn a_full_journal_says_from_when_on_events_are_missing() {
    let training = client("support/clients/training.c", "training", &[]);
    let job = Job::new(training).sim("24GiB", 1).args(["30000"]);
    let finished = job.env("VRAMSHIM_JOURNAL_MAX", "1MiB").run().ok();
    let journals = finished.folder.path().join("journals");
    let process = &data(&journals)["processes"][0];
    assert!(process["trust"]["lost"].as_u64() > Some(0), "{}", process["trust"]);
    let Some(mut browser) = browser() else { return };
    open(&mut browser, finished.folder.path(), &journals);
    browser.assert_shows("#trust", &["lost, the first at", "incomplete"]);
    let is_bad = browser.value("document.getElementById('trust').classList.contains('bad')");
    assert_eq!(is_bad, true);
}

#[test]
fn runs_in_one_folder_have_dates_and_the_newest_comes_first() {
    let folder = TempDir::new().unwrap();
    let journals = folder.path().join("journals");
    std::fs::create_dir(&journals).unwrap();
    let write = |rank: u32, started_s: u64| -> PathBuf { job::write_started(&journals, rank, started_s).unwrap().path };
    // Rank 0 of each run runs out of memory. A run of three processes a day earlier, and a newer one of two.
    let day = 86_400;
    (0..3).for_each(|rank| drop(write(rank, job::STARTED_S - day + u64::from(rank))));
    (0..2).for_each(|rank| drop(write(rank, job::STARTED_S)));
    assert_eq!(journals_in(&journals).len(), 5);
    let all = data(&journals);
    let told = all["processes"].list().iter();
    let told: Vec<_> = told.map(|one| (one["run"].number(), one["rank"].text())).collect();
    assert_eq!(told, [(0, "0"), (0, "1"), (1, "0"), (1, "2"), (1, "1")]);
    assert!(all["first_because"].text().starts_with("it is of the newest run, and "));
    let Some(mut browser) = browser() else { return };
    open(&mut browser, folder.path(), &journals);
    let mut texts = |selector: &str, field: &str| -> Vec<String> {
        let list = format!("[...document.querySelectorAll('{selector}')].map((one) => one.{field})");
        serde_json::from_value(browser.value(&list)).unwrap()
    };
    // The list at the head of the page tells them apart, too.
    for (headings, new, old) in [
        (texts("#ranks h3", "textContent"), "Newest run: ", "Run of "),
        (texts("#process optgroup", "label"), "", ""),
    ] {
        assert_eq!(headings.len(), 2, "{headings:?}");
        for (heading, begin, day) in [(&headings[0], new, 21), (&headings[1], old, 20)] {
            let begin = format!("{begin}2026-09-{day} 14:13:20 UTC");
            assert!(heading.starts_with(&begin), "{headings:?}");
        }
    }
    browser.assert_shows("#subtitle", &["recorded from 2026-09-21T14:13:20Z"]);
    browser.assert_shows("#verdict", &["it did not run out of memory"]);
    let title = &all["processes"][0]["title"].text()[..30];
    browser.assert_shows("#process", &[&format!("rank 0 {title}…, out of memory")]);
    // A process of the older run.
    browser.click("#ranks ul:last-of-type li:first-child button");
    browser.assert_shows("#subtitle", &["recorded from 2026-09-20T14:13:20Z"]);
}

/// The times of a journal begin with the process's first use of CUDA, which is not that of other ranks.
#[test]
fn the_first_rank_that_failed_is_first_by_the_clock_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Made::with(folder.path(), 70, 0, "RANK=1", "").unwrap();
    first.wait(1_000_000_000);
    first.fail(2048 * MIB).unwrap();
    first.wait(6_000_000_000);
    first.end(Some(1)).unwrap();
    let mut later = Made::with(folder.path(), 71, 5, "RANK=0", "").unwrap();
    later.fail(2048 * MIB).unwrap();
    later.end(Some(1)).unwrap();
    let page = data(folder.path());
    assert_eq!(page["processes"][0]["pid"], 70, "{}", page["because"]);
}
