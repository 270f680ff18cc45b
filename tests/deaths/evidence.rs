//! What a verdict rests on: figures of the moment of the refusal, whole records, and files that lie beside a journal. What
//! is not known is not said.

use std::fs;
use std::path::{Path, PathBuf};

use base::api::Api;
use base::shortage::Allowance;
use journal::format::{Device, Event, FrameworkRequest, HEADER_SIZE, SLOT_SIZE, Teller};
use journal::writer::About;
use serde_json::{Value, json};
use support::made::{self, Made, failed};
use support::{Fields, MIB, Printed, assert_fields, assert_says, vramshim};
use tempfile::TempDir;

use super::{Told, why_of};

pub const BEGAN_US: u64 = 1_790_000_000_000_000;
pub const TORCH: &str = "framework=PyTorch 2.12.0\0";

#[track_caller]
pub fn assert_told(told: &Told, code: i32, says: &str) {
    assert_eq!(told.code, Some(code), "{}{}", told.text, told.said);
    assert_says(&told.text, says);
}

/// A job whose 800 MiB leave 174 MiB of its device.
pub fn full(folder: &Path, environment: &str, software: &str) -> Made {
    let about = About {
        environment: environment.as_bytes().to_vec(),
        software: software.as_bytes().to_vec(),
        ..made::about(70, 0)
    };
    let device = Device {
        limit: Some(900 * MIB),
        ..made::device(0)
    };
    let mut job = Made::about(folder, &about, &[device]).unwrap();
    for _ in 0..8 {
        job.alloc(0, 100 * MIB, 0).unwrap();
    }
    measure(&mut job, 174 * MIB, 800 * MIB, 850 * MIB);
    job
}

/// The journal of such a job that does this and then ends, in its folder.
fn ended([environment, software]: [&str; 2], exit: Option<i32>, goes_on: impl FnOnce(&mut Made)) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let mut job = full(folder.path(), environment, software);
    goes_on(&mut job);
    let path = job.end(exit).unwrap();
    (folder, path)
}

/// The same, and 300 MiB more that it asks for fail.
fn died(settings: [&str; 2]) -> (TempDir, PathBuf) {
    ended(settings, Some(1), |job| fail(job, 300 * MIB, 2, false))
}

/// What `why` says of a job that does this and then ends.
fn told_of(settings: [&str; 2], exit: Option<i32>, goes_on: impl FnOnce(&mut Made)) -> Told {
    let (_folder, path) = ended(settings, exit, goes_on);
    why_of(&path)
}

pub fn measure(job: &mut Made, free: u64, reserved: u64, of_process: u64) {
    let event = made::measured([1024 * MIB, free], reserved, of_process);
    job.happened(0, Api::Policy, event).unwrap();
}

fn limited(job: &mut Made, limit: u64, used: u64, own: u64, group: bool) {
    let state = Allowance {
        limit,
        used,
        own,
        group,
    };
    job.happened(0, Api::Policy, Event::Limit(state)).unwrap();
}

pub fn fail(job: &mut Made, bytes: u64, result: i32, over_limit: bool) {
    job.happened(0, Api::cudaMalloc, failed(bytes, result, over_limit))
        .unwrap();
}

/// What `why` says of a journal beside which a file of PyTorch's tensors has these lines.
pub fn with_tensors(journal: &Path, lines: &str) -> Told {
    let text = format!("vramshim-pytorch\t1\t70\t2.12.0\n{lines}");
    fs::write(journal.with_extension("tensors"), text).unwrap();
    why_of(journal)
}

fn at(slot: usize) -> usize {
    HEADER_SIZE + slot * SLOT_SIZE
}

fn damage(path: &Path, slot: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at(slot) + 20] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn figures_that_were_read_after_the_refusal_are_told_as_such() {
    let told = told_of(["", ""], Some(1), |job| {
        limited(job, 2000 * MIB, 900 * MIB, 850 * MIB, true);
        fail(job, 300 * MIB, 2, true);
    });
    assert_told(&told, 17, "how much was missing at the refusal is not known");
}

/// One rule: the code says whose limit it is, and not who holds the memory.
#[test]
fn the_limit_of_a_group_with_one_member_is_the_limit_of_a_group() {
    for (group, code, name) in [(true, 17, "group_limit"), (false, 16, "limit")] {
        let told = told_of(["", ""], Some(1), |job| {
            limited(job, 900 * MIB, 850 * MIB, 850 * MIB, group);
            fail(job, 100 * MIB, 2, true);
        });
        assert_told(&told, code, "With 50.0 MiB more this request fits");
        assert_eq!(told.page["why"]["verdict"], name);
        assert_eq!(told.page["why"]["failure"]["refused_by"]["by"], name);
    }
}

#[test]
fn the_missing_file_of_tensors_is_told() {
    for (environment, lacks) in [("VRAMSHIM_TORCH=record\0", true), ("", false)] {
        let (_folder, path) = died([environment, TORCH]);
        let told = why_of(&path);
        assert_eq!(told.code, Some(12), "{}", told.text);
        assert_eq!(told.page["why"]["uncertain"], lacks, "{}", told.text);
        let next = told.page["next"].to_string();
        assert_eq!(next.contains("Copy node1-70-1.tensors"), lacks, "{next}");
        assert_eq!(with_tensors(&path, "").page["why"]["uncertain"], false, "it is there");
    }
}

#[test]
fn a_damaged_record_takes_the_certainty_from_a_verdict() {
    let (_folder, path) = died(["", ""]);
    let whole = fs::read(&path).unwrap();
    assert_told(&why_of(&path), 12, "live memory is too much");
    // An allocation; the measurement; the failure itself.
    for (slot, says) in [
        (3, "1 event was lost or damaged"),
        (8, "1 event was lost or damaged"),
        (9, "1 event was damaged. A failed request may be among them"),
    ] {
        fs::write(&path, &whole).unwrap();
        damage(&path, slot);
        let told = why_of(&path);
        assert_told(&told, 10, says);
        assert_eq!(told.page["why"]["uncertain"], true);
    }
}

/// Whose limit it was is in a record before that of the failure, and in the settings.
#[test]
fn a_damaged_record_of_a_limit_does_not_change_whose_it_was() {
    let (_folder, path) = ended(["VRAMSHIM_ACCOUNTS=/acc\0", ""], Some(1), |job| {
        limited(job, 900 * MIB, 850 * MIB, 50 * MIB, true);
        fail(job, 100 * MIB, 2, true);
    });
    assert_told(&why_of(&path), 17, "other members of the group hold 800.0 MiB");
    damage(&path, 9);
    let told = why_of(&path);
    assert_told(&told, 17, "the limit of the group: it refused the request");
    assert_eq!(told.page["why"]["uncertain"], true);
}

#[test]
fn reconcile_gives_pools_no_bytes_of_a_damaged_record() {
    let (_folder, path) = ended(["", ""], Some(0), |_| {});
    let reconcile = || says("reconcile", &path);
    let Printed { code, text, .. } = reconcile();
    assert!(code == Some(0) && !text.contains("in no record"), "{text}");
    damage(&path, 3);
    let Printed { code, text, .. } = reconcile();
    assert_eq!(code, Some(1), "{text}");
    assert!(!text.contains("pools"), "{text}");
    let row = text.lines().find(|line| line.contains("in no record")).expect(&text);
    assert!(row.contains("100.0 MiB"), "{row}");
    assert_says(&text, "1 event was damaged, so its ledger here is incomplete");
}

#[test]
fn a_journal_that_cannot_be_read_fails_the_answer_but_not_the_others() {
    let (folder, path) = ended(["", ""], Some(0), |_| {});
    assert_eq!(why_of(folder.path()).code, Some(0));
    fs::write(folder.path().join("noise.vraj"), [7; 20_000]).unwrap();
    let told = why_of(folder.path());
    assert_told(&told, 1, "No request failed for lack of memory");
    assert_says(&told.said, "noise.vraj: ");
    // The verdict of another journal is the answer all the same.
    fs::remove_file(path).unwrap();
    let mut job = full(folder.path(), "", "");
    fail(&mut job, 300 * MIB, 2, false);
    job.end(Some(1)).unwrap();
    assert_told(&why_of(folder.path()), 12, "Verdict: ");
}

#[test]
fn when_a_killed_process_ended_is_not_claimed() {
    let told = told_of(["", ""], None, |_| {});
    assert_says(&told.text, "at a time that is not known; last sign of life after ");
}

#[test]
fn the_distance_to_the_limit_of_a_group_is_not_that_of_one_process() {
    for (environment, of_group) in [
        ("VRAMSHIM_ACCOUNTS=/acc\0", true),
        ("VRAMSHIM_ACCOUNTS=/acc\0VRAMSHIM_LIMIT_SCOPE=process\0", false),
        ("VRAMSHIM_LIMIT_SCOPE=group\0", true),
        ("", false),
    ] {
        let told = told_of([environment, ""], Some(0), |_| {});
        assert_eq!(told.page["why"]["distance"]["of_group"], of_group, "{environment}");
    }
}

/// PyTorch's own limit refuses without a call of CUDA. Its clock may be behind that of the journal.
#[test]
fn the_refusal_of_pytorch_is_told_by_the_clock_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", TORCH).unwrap();
    let segment = 0x7f00_0000_0000u64;
    job.wait(20_000_000);
    job.alloc_at(0, segment, 64 * MIB, 0).unwrap();
    let behind_us = 15_000;
    let at = |job: &Made| BEGAN_US + job.now_ns() / 1000 - behind_us;
    let mut tensors = format!("S\t{}\t0\t{segment}\t{}\n", at(&job), 64 * MIB);
    job.wait(4_000_000);
    tensors += &format!("O\t{}\t0\t{}\t0\nD\t{}\t0\t0\n", at(&job), 100 * MIB, at(&job));
    let told = with_tensors(&job.end(Some(1)).unwrap(), &tensors);
    assert_told(&told, 16, "it refused 100.0 MiB on device 0 at 25.0 ms");
    assert_says(&told.text, "at least 64.0 MiB, and less than 164.0 MiB");
}

/// A graph or a MemPool keeps its segments when none of its tensors lives.
#[test]
fn a_private_pool_without_tensors_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = full(folder.path(), "", TORCH);
    let (segment, size, now) = (0x7f00_0000_0000u64, 90 * MIB, BEGAN_US + job.now_ns() / 1000);
    job.alloc_at(0, segment, size, 0).unwrap();
    let tensors = format!("S\t{now}\t0\t{segment}\t{size}\t0.3\nD\t{now}\t0\t0\n");
    job.wait(1_000_000);
    fail(&mut job, 60 * MIB, 2, false);
    let told = with_tensors(&job.end(Some(1)).unwrap(), &tensors);
    assert_says(&told.text, "End graphs or pools that are not needed");
}

#[test]
fn a_process_that_nvml_and_the_account_tell_is_named_once() {
    let (_folder, path) = ended(["", ""], Some(1), |job| {
        measure(job, 4 * MIB, 800 * MIB, 850 * MIB);
        for (pid, mib, told_by) in [
            (70, 850, Teller::Nvml),
            (71, 170, Teller::Nvml),
            (71, 170, Teller::Account),
        ] {
            let process = made::process(pid, mib * MIB, told_by);
            job.happened(0, Api::Policy, process).unwrap();
        }
        fail(job, 100 * MIB, 2, false);
    });
    let text = vramshim(&["report", "--json", path.to_str().unwrap()]).text;
    assert_eq!(text.matches(r#""note":"71""#).count(), 1, "{text}");
}

/// With lost events it is not known what the process holds, so nothing is said to fit beside it.
#[test]
fn what_fits_beside_a_process_is_told_only_if_it_is_known() {
    for (damaged, fits) in [(false, true), (true, false)] {
        let (_folder, path) = ended(["", ""], Some(1), |job| fail(job, 3000 * MIB, 2, false));
        if damaged {
            damage(&path, 3);
        }
        let told = why_of(&path);
        assert_told(&told, 11, "Look at the numbers that this size was computed from");
        assert_eq!(told.text.contains("fit on the device"), fits, "{}", told.text);
    }
}

/// A job that allocates 200 times, asks for too much and exits.
fn long(folder: &Path) -> PathBuf {
    let mut job = Made::new(folder, 70, 0).unwrap();
    for _ in 0..200 {
        job.alloc(0, 4 * MIB, 0).unwrap();
    }
    measure(&mut job, 174 * MIB, 800 * MIB, 850 * MIB);
    job.fail(300 * MIB).unwrap();
    job.end(Some(1)).unwrap()
}

fn says(command: &str, path: &Path) -> Printed {
    vramshim(&[command, path.to_str().unwrap()])
}

#[test]
fn zeros_in_place_of_records_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = long(folder.path());
    let whole = fs::read(&path).unwrap();
    assert_eq!(why_of(&path).code, Some(12));
    assert_eq!(says("reconcile", &path).code, Some(0));
    let end = whole.len();
    for (what, from, to) in [
        ("a page in the middle", at(64), at(128)),
        ("the last page", at(192), end),
        ("all records", at(0), end),
    ] {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0);
        fs::write(&path, bytes).unwrap();
        let told = why_of(&path);
        assert_eq!(told.code, Some(10), "{what}: {}", told.text);
        assert_eq!(told.page["why"]["uncertain"], true, "{what}");
        assert!(!told.text.contains("asked for no GPU memory"), "{what}: {}", told.text);
        if what == "a page in the middle" {
            assert_eq!(says("reconcile", &path).code, Some(1), "{what}");
        }
    }
}

#[test]
fn a_damaged_header_is_not_told_as_facts() {
    let folder = tempfile::tempdir().unwrap();
    let path = long(folder.path());
    let mut bytes = fs::read(&path).unwrap();
    // The strategy, how it ended, what was lost, host and job, and the device.
    bytes[80..700].fill(0x5a);
    fs::write(&path, bytes).unwrap();
    let told = why_of(&path);
    let inspected = says("inspect", &path).text;
    for text in [&told.text, &inspected] {
        for damaged in ["ZZZZ", "1515870811", "388,062", "d 8 h"] {
            assert!(!text.contains(damaged), "{damaged}: {text}");
        }
        assert!(text.contains("not known (damaged)"), "{text}");
    }
    assert_eq!(told.page["process"]["host"], Value::Null);
    let job = &support::inspect(&path)[0];
    let wanted = json!({"ended": "not_known", "events_lost": null, "exit_status": null});
    assert_fields(job, wanted, "");
}

/// What a job does after a request that is larger than its device, how it ends, and the exit code of `why`. The job may
/// allocate again so many seconds after the failure.
#[test]
fn a_job_died_of_its_last_failure_unless_it_went_on() {
    for (again_s, frees, exit, code) in [
        (0, true, Some(0), 0),
        (0, false, Some(0), 0),
        // An exception that the job does not catch frees memory before the process is killed, and other threads may
        // allocate some meanwhile.
        (0, true, None, 11),
        (1, true, None, 11),
        (0, false, Some(1), 11),
        (0, true, Some(1), 11),
        (0, false, None, 11),
        (11, false, Some(1), 0),
        (2, false, Some(1), 11),
        (11, false, None, 0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Made::new(folder.path(), 70, 0).unwrap();
        let block = job.alloc(0, 200 * MIB, 0).unwrap();
        job.fail(2048 * MIB).unwrap();
        if frees {
            job.free(0, block, 200 * MIB).unwrap();
        }
        if again_s > 0 {
            job.wait(again_s * 1_000_000_000);
            job.alloc(0, MIB, 0).unwrap();
        }
        let told = why_of(&job.end(exit).unwrap());
        assert_eq!(told.code, Some(code), "{}", told.text);
        assert_eq!(told.page["why"]["fatal"], code == 11, "{}", told.text);
    }
}

/// Of several holders none frees enough alone: each is named, and how many have to end.
#[test]
fn all_holders_of_a_device_are_named() {
    let next = |sizes: &[u64]| {
        let told = told_of(["", ""], Some(1), |job| {
            let measured = made::measured([4096 * MIB, 24 * MIB], 800 * MIB, 850 * MIB);
            job.happened(0, Api::Policy, measured).unwrap();
            for (pid, mib) in (4000..).zip(sizes).chain([(70, &850)]) {
                let process = made::process(pid, mib * MIB, Teller::Nvml);
                job.happened(0, Api::Policy, process).unwrap();
            }
            fail(job, 1500 * MIB, 2, false);
        });
        assert_eq!(told.code, Some(15), "{}", told.text);
        told.page["next"][0].text().to_owned()
    };
    let several = next(&[700, 500, 900, 400, 300, 400]);
    for says in [
        "6 processes are that hold this device: 4002 with 900.0 MiB, 4000 with 700.0 MiB, 4001",
        "No single one is enough: the 2 largest free 1.56 GiB. End those",
    ] {
        assert_says(&several, says);
    }
    assert_says(&next(&[2000, 1200]), "whose process 4000 is, which holds 1.95 GiB");
}

/// PyTorch gives its cache back after a refusal and asks again. If that is served, the refusal ended nothing.
#[test]
fn a_retry_that_was_served_is_no_death() {
    for (served, code) in [(true, 0), (false, 12)] {
        let told = told_of(["", TORCH], Some(1), |job| {
            let request = FrameworkRequest {
                requested: None,
                asks_again: Some(true),
                free: None,
            };
            measure(job, 24 * MIB, 800 * MIB, 1000 * MIB);
            job.happened(0, Api::Policy, Event::FrameworkRequest(request)).unwrap();
            fail(job, 40 * MIB, 2, false);
            job.alloc(0, if served { 40 } else { 10 } * MIB, 0).unwrap();
        });
        assert_eq!(told.code, Some(code), "{}", told.text);
    }
}

/// The other process is of another job, which has ended by now; one that ran on would have to end.
#[test]
fn a_holder_that_has_ended_since_is_told() {
    for (name, has_ended) in [("other", true), ("made", false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut about = made::about(71, 0);
        about.job = name.to_owned();
        let mut other = Made::about(folder.path(), &about, &[made::device(0)]).unwrap();
        other.alloc(0, 160 * MIB, 0).unwrap();
        other.end(Some(0)).unwrap();
        let mut job = full(folder.path(), "", "");
        measure(&mut job, 4 * MIB, 800 * MIB, 850 * MIB);
        for (pid, mib) in [(70, 850), (71, 170)] {
            let process = made::process(pid, mib * MIB, Teller::Nvml);
            job.happened(0, Api::Policy, process).unwrap();
        }
        fail(&mut job, 100 * MIB, 2, false);
        let told = why_of(&job.end(Some(1)).unwrap());
        assert_eq!(told.code, Some(15), "{}", told.text);
        let next = told.page["next"][0].text();
        assert_eq!(next.contains("has ended since: try again"), has_ended, "{next}");
    }
}
