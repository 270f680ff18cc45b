//! The formats of requests and of stacks: their sums are the journal's.

use std::collections::BTreeMap;

use serde_json::Value;
use support::{AUTO_GROWTH, Fields, NAIVE_BEST_FIT, PASSTHROUGH, inspect};

use crate::formats::{exercise, export};

#[test]
fn rows_add_up_to_the_journal() {
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let finished = exercise(strategy, 2);
        let journal = &finished.journals()[0];
        let (_folder, path) = export(journal, "csv", &[]);
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap().split(',').collect();
        assert_eq!(names[..6], ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]);
        let column = |name: &str| names.iter().position(|known| *known == name).unwrap();
        let [action, size, device, allocated] = ["Action", "Size", "Device", "Allocated"].map(column);
        // Of each device: requests that got memory, and requested and allocated bytes that are live at the end.
        let mut sums = BTreeMap::<i64, [i64; 3]>::new();
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), names.len(), "{line}");
            let sign = match fields[action] {
                "allocate" => 1,
                "free" => -1,
                other => {
                    assert_eq!(other, "allocate failure");
                    continue;
                }
            };
            let sum = sums.entry(fields[device].parse().unwrap()).or_default();
            let [size, allocated] = [size, allocated].map(|column| fields[column].parse::<i64>().unwrap());
            *sum = [sum[0] + sign.max(0), sum[1] + sign * size, sum[2] + sign * allocated];
        }
        let pages = inspect(journal);
        let devices = pages[0]["devices"].list().iter();
        let of_ledger = devices.filter(|device| device["device"] != -1).map(|device| {
            let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{device}"));
            let levels = ["requested", "allocated"].map(|level| number(&device[level]["current"]));
            (
                number(&device["device"]),
                [number(&device["count"]), levels[0], levels[1]],
            )
        });
        assert_eq!(sums, of_ledger.collect(), "{}", strategy.name);
    }
}

#[test]
fn stacks_have_the_live_bytes() {
    let finished = exercise(NAIVE_BEST_FIT, 1);
    let journal = &finished.journals()[0];
    let pages = inspect(journal);
    let live = pages[0]["live"].list().iter();
    let live: u64 = live
        .filter(|live| live["class"] != "imported" && live["class"] != "address_range")
        .map(|live| live["allocated"].as_u64().unwrap_or_else(|| panic!("{live}")))
        .sum();
    assert!(live > 0);
    let (_folder, path) = export(journal, "collapsed", &["--at", "end"]);
    let text = std::fs::read_to_string(path).unwrap();
    let weight = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(text.lines().map(weight).sum::<u64>(), live);
}
