//! `vramshim replay` on small traces whose answers can be worked out by hand.

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use common::program;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn replay(trace: &Path, arguments: &[&str]) -> Output {
    Command::new(program())
        .arg("replay")
        .arg(trace)
        .args(arguments)
        .output()
        .expect("replay")
}

fn csv(rows: &[(&str, u64, u64)]) -> String {
    let mut text = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    for (action, pointer, size) in rows {
        writeln!(text, "0,00:00:00.000000,{action},{pointer:#x},{size},0").unwrap();
    }
    text
}

fn peaks(text: &str, arguments: &[&str]) -> (Value, Vec<(String, u64, bool)>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, text).unwrap();
    let output = replay(&path, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = page["strategies"].as_array().unwrap().iter().map(|row| {
        let name = row["name"].as_str().unwrap().to_owned();
        (
            name,
            row["peak_reserved"].as_u64().unwrap(),
            row["fits"].as_bool().unwrap(),
        )
    });
    let rows = rows.collect();
    (page, rows)
}

fn reserved(rows: &[(String, u64, bool)], name: &str) -> u64 {
    rows.iter()
        .find(|row| row.0 == name)
        .unwrap_or_else(|| panic!("no {name}"))
        .1
}

#[test]
fn each_strategy_reserves_what_its_rules_say() {
    let text = csv(&[
        ("allocate", 0x1000, 100),
        ("allocate", 0x2000, 3 * MIB),
        ("allocate", 0x3000, 11 * MIB + 1),
        ("free", 0x2000, 3 * MIB),
        ("free", 0x7777, 1),
    ]);
    let (page, rows) = peaks(&text, &[]);
    assert_eq!(page["peak_live"], 100 + 3 * MIB + 11 * MIB + 1);
    assert_eq!(page["unmatched"], 1);
    assert_eq!(reserved(&rows, "passthrough"), page["peak_live"].as_u64().unwrap());
    // 2 MiB for the small one, 20 MiB for the middle one, whose rest serves the large one
    assert_eq!(reserved(&rows, "torch"), 22 * MIB);
    // small pages of 2 MiB, large ones of 20 MiB
    assert_eq!(reserved(&rows, "torch_expandable"), 22 * MIB);
    // a chunk each, rounded to 512 bytes: the first 3 MiB are still held when the large one comes
    assert_eq!(reserved(&rows, "auto_growth"), 512 + 3 * MIB + 11 * MIB + 512);
}

#[test]
fn a_cache_is_given_back_before_a_request_fails() {
    let text = csv(&[
        ("allocate", 1, 60 * MIB),
        ("free", 1, 60 * MIB),
        ("allocate", 2, 80 * MIB),
    ]);
    let (page, rows) = peaks(&text, &["--device-memory", "100MiB"]);
    for row in page["strategies"].as_array().unwrap() {
        assert_eq!(row["smallest_device"], 80 * MIB, "{row}");
    }
    assert!(rows.iter().all(|(_, _, fits)| *fits), "{rows:?}");
    let (_, rows) = peaks(&text, &["--device-memory", "70MiB"]);
    assert!(rows.iter().all(|(_, _, fits)| !*fits), "{rows:?}");
}

#[test]
fn the_journal_of_a_job_can_be_played() {
    let path = common::client("training.c", "training", &[]);
    let finished = common::Job::new(path).run().ok();
    let journal = &finished.journals()[0];
    let output = replay(journal, &["--json"]);
    let page: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let told = finished.inspect();
    assert_eq!(page["peak_live"], told["devices"][0]["requested"]["peak"]);
}

#[test]
fn what_is_no_trace_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    for (content, words) in [
        ("", "no column"),
        ("a,b\n1,2\n", "no column Action"),
        (
            "Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x1,many,0\n",
            "line 2: Size \"many\"",
        ),
        ("Thread,Time,Action,Pointer,Size,Stream\n0,0,borrow,0x1,1,0\n", "borrow"),
        ("Thread,Time,Action,Pointer,Size,Stream\n", "no request"),
    ] {
        std::fs::write(&path, content).unwrap();
        let output = replay(&path, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && said.contains("trace.csv"), "{said}");
    }
    let pickle = folder.path().join("snapshot.pickle");
    for (content, words) in [
        (&b"\x80\x04]\x94."[..], "no device_traces"),
        (b"\x80\x04}\x94(", "no pickle"),
        (b"", "no pickle"),
    ] {
        std::fs::write(&pickle, content).unwrap();
        let output = replay(&pickle, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(words), "{said}");
    }
    let output = replay(&path, &["--strategy", "torch,best"]);
    assert_eq!(output.status.code(), Some(2));
}
