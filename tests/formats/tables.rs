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
        // By device, the requests that got memory; and the requested and allocated bytes that are live at the end.
        let (mut counts, mut live) = (BTreeMap::<i64, i64>::new(), [0, 0]);
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
            *counts.entry(fields[device].parse().unwrap()).or_default() += sign.max(0);
            let bytes = [size, allocated].map(|column| fields[column].parse::<i64>().unwrap());
            live = [live[0] + sign * bytes[0], live[1] + sign * bytes[1]];
        }
        let pages = inspect(journal);
        let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{value}"));
        let devices = pages[0]["devices"].list().iter();
        let of_devices = devices.map(|device| (number(&device["device"]), number(&device["count"])));
        // Managed memory may be of no device, as memory of the host is.
        counts.remove(&-1);
        let of_devices = of_devices.filter(|&(device, _)| device >= 0);
        assert_eq!(counts, of_devices.collect(), "{}", strategy.name);
        let of_host = ["host", "host_registered", "imported", "address_range"];
        let left = pages[0]["live"].list().iter();
        let left = left.filter(|one| !of_host.contains(&one["class"].text()));
        let sums = left.fold([0, 0], |sum, one| {
            [sum[0] + number(&one["size"]), sum[1] + number(&one["allocated"])]
        });
        assert_eq!(live, sums, "{}", strategy.name);
    }
}

#[test]
fn stacks_have_the_live_bytes() {
    let finished = exercise(NAIVE_BEST_FIT, 1);
    let journal = &finished.journals()[0];
    let pages = inspect(journal);
    let live = pages[0]["live"].list().iter();
    let live = live.filter(|live| live["class"] != "imported" && live["class"] != "address_range");
    let live: u64 = live.map(|live| live["allocated"].number()).sum();
    assert!(live > 0);
    let (_folder, path) = export(journal, "collapsed", &["--at", "end"]);
    let text = std::fs::read_to_string(path).unwrap();
    let weight = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(text.lines().map(weight).sum::<u64>(), live);
}
