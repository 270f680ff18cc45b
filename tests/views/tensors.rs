//! Views of a PyTorch job: with PyTorch's own record its tensors are the allocations; without it the views say that
//! their figures are of segments.

use std::path::{Path, PathBuf};

use journal::format::MarkKind;
use support::made::Made;
use support::{Fields, MIB, assert_fields, assert_says};

use super::{device, json, sum, text};

const BEGAN_US: u64 = 1_790_000_000_000_000;
const STEP: u64 = 1;
const STEPS: u64 = 12;

/// A segment of 64 MiB in which each step has 40 MiB for a while and keeps 1 MiB.
fn torch(folder: &Path, recorded: bool) -> PathBuf {
    let mut job = Made::with(folder, 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    job.stack_line(&["N", "1", "step"]);
    let segment = 0x7f00_0000_0000u64;
    job.alloc_at(0, segment, 64 * MIB, 0).unwrap();
    let now_us = |job: &Made| BEGAN_US + job.now_ns() / 1000;
    let mut tensors = format!(
        "vramshim-pytorch\t1\t70\t2.12.0\nS\t{}\t0\t{segment}\t{}\n\
         T\t0\t/x/train.py\t16\tforward\nT\t1\t/x/train.py\t20\tlog_loss\n",
        now_us(&job),
        64 * MIB
    );
    for step in 0..STEPS {
        job.mark(STEP, MarkKind::Instant).unwrap();
        let at = now_us(&job);
        let kept = segment + (40 + step) * MIB;
        tensors += &format!(
            "A\t{}\t0\t{segment}\t{}\t0\t0\nA\t{}\t0\t{kept}\t{MIB}\t0\t1\nF\t{}\t0\t{segment}\n",
            at + 100,
            40 * MIB,
            at + 200,
            at + 300
        );
        job.wait(1_000_000);
    }
    job.mark(2, MarkKind::Instant).unwrap();
    for _ in 0..2 {
        job.fail(2048 * MIB).unwrap();
    }
    tensors += &format!("O\t{}\t0\t{}\t0\n", now_us(&job), 2047 * MIB);
    tensors += &format!("D\t{}\t24\t0\n", now_us(&job));
    let path = job.end(Some(0)).unwrap();
    if recorded {
        std::fs::write(path.with_extension("tensors"), tensors).unwrap();
    }
    path
}

#[test]
fn with_pytorchs_record_the_views_are_of_its_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = torch(folder.path(), true);
    let page = json(&path, &["--at", "peak", "--leaks", "--growth", "--top", "stack"]);
    let peak = device(&page, "at");
    assert_eq!(peak["allocated"], (40 + STEPS) * MIB, "{page:#}");
    assert_eq!(peak["reserved"], 64 * MIB);
    assert_eq!(peak["holders"][0]["name"], "/x/train.py:16 forward");
    let leaks = device(&page, "leaks");
    assert_eq!(leaks["suspected_bytes"], STEPS * MIB);
    assert_eq!(leaks["holders"][0]["name"], "/x/train.py:20 log_loss");
    let growth = &page["jobs"][0]["growth"]["holders"][0];
    assert_eq!(growth["name"], "/x/train.py:20 log_loss");
    assert_eq!(growth["bytes_a_step"].as_f64().unwrap().round(), MIB as f64);
    assert_eq!(sum(&peak["holders"], "bytes"), (40 + STEPS) * MIB);
    assert!(page["jobs"][0]["note"].text().contains("PyTorch's tensors"));
    let page = json(&path, &["--at", "end"]);
    let end = device(&page, "at");
    assert_fields(end, json!({"time_ns": 29_000_000, "allocated": STEPS * MIB}), "");
    assert_eq!(end["is_at_least"], false);
    assert_eq!(json(&path, &[])["jobs"][0]["peaks_are_at_least"], false);
    let file = path.with_extension("tensors");
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + "A\tdamaged\n").unwrap();
    assert_eq!(json(&path, &[])["jobs"][0]["peaks_are_at_least"], true);
    let page = json(&path, &["--at", "end"]);
    assert_eq!(device(&page, "at")["is_at_least"], true);
}

#[test]
fn what_no_snapshot_shows_is_obtained_and_not_known_to_be_live() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "", "framework=PyTorch 2.12.0").unwrap();
    let segment = job.alloc(0, 64 * MIB, 0).unwrap();
    job.alloc(0, 7 * MIB, 0).unwrap();
    let mut tensors = format!(
        "vramshim-pytorch\t1\t70\t2.12.0\tstate\nS\t{BEGAN_US}\t0\t{segment}\t{}\n",
        64 * MIB
    );
    for second in 0..2 {
        let taken = BEGAN_US + second * 1_000_000;
        tensors += &format!("A\t{taken}\t0\t{segment}\t{}\t0\t0\nD\t{taken}\t1\t0\n", 40 * MIB);
        let between = job.alloc(0, 500 * MIB, 0).unwrap();
        job.free(0, between, 500 * MIB).unwrap();
        job.at(1_500_000_000);
    }
    let path = job.end(Some(0)).unwrap();
    std::fs::write(path.with_extension("tensors"), tensors).unwrap();
    let levels = |current: u64, peak: u64| json!({"current": current * MIB, "peak": peak * MIB});
    let wanted = json!({"allocated": levels(47, 47), "reserved": levels(71, 571)});
    assert_fields(&json(&path, &[])["jobs"][0]["devices"][0], wanted, "");
}

#[test]
fn all_views_tell_pytorchs_times_by_the_clock_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = torch(folder.path(), true);
    // PyTorch's clock is behind: all that it tells is earlier than the journal says.
    let file = path.with_extension("tensors");
    let earlier = |line: &str| {
        let mut fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
        if ["A", "F", "S", "O", "D"].contains(&fields[0].as_str()) {
            fields[1] = (fields[1].parse::<u64>().unwrap() - 400).to_string();
        }
        fields.join("\t") + "\n"
    };
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.lines().map(earlier).collect::<String>()).unwrap();
    let page = json(&path, &["--at", "peak"]);
    let peak = device(&page, "at");
    let tensors = &json(&path, &[])["jobs"][0]["tensors"]["devices"][0]["peak"];
    assert_eq!(tensors["time_ns"], peak["time_ns"], "{tensors:#}");
    let oldest = |page: &serde_json::Value| {
        let holders = page["holders"].list().iter();
        holders.map(|holder| holder["oldest_ns"].as_u64()).min()
    };
    assert_eq!(oldest(tensors), oldest(peak), "{tensors:#}");
}

#[test]
fn without_it_the_views_say_that_they_are_of_segments() {
    let folder = tempfile::tempdir().unwrap();
    let path = torch(folder.path(), false);
    for view in [&["--leaks"][..], &["--top", "size"], &["--growth"]] {
        let page = text(&path, view);
        assert_says(&page, "segments of PyTorch's own cache, not its tensors");
    }
    // What leaks inside the cache is not known.
    assert!(device(&json(&path, &["--leaks"]), "leaks")["suspected_bytes"].is_null());
}
