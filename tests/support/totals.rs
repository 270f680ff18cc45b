//! Compares the three counts of a checkpoint: what the client counted itself, what the simulator's table holds, and
//! what the library's ledger says. The journal is compared with the last checkpoint.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Strategy;
use crate::{Fields, assert_fields};

/// Bytes by device and class. Classes with 0 bytes are left out.
pub type Totals = BTreeMap<(i64, String), u64>;

pub fn totals(rows: &Value, bytes: impl Fn(&Value) -> &Value) -> Totals {
    let rows = rows.as_array().unwrap_or_else(|| panic!("no rows: {rows}"));
    rows.iter()
        .map(|row| {
            let key = (row["device"].as_i64().unwrap(), row["class"].text().to_owned());
            (key, bytes(row).as_u64().unwrap_or_else(|| panic!("no bytes: {row}")))
        })
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

/// The bytes that the simulator has reserved, in the classes of the job's requests. `auto_growth` serves linear memory
/// from granules that it maps itself, so mapped memory beyond the job's own counts as linear.
pub fn reserved(checkpoint: &Value) -> Totals {
    let own = totals(&checkpoint["own"], |row| &row["requested"]);
    let mut truth = totals(&checkpoint["truth"]["totals"], |row| &row["reserved"]);
    let name = |device: i64, class: &str| (device, class.to_owned());
    for device in 0..32 {
        let mut excess = |class: &str| {
            let held = truth.get_mut(&name(device, class))?;
            let jobs = own.get(&name(device, class)).copied().unwrap_or(0);
            let more = std::mem::replace(held, jobs).checked_sub(jobs);
            Some(more.expect("no less than the job's own"))
        };
        let mapped = excess("vmm").unwrap_or(0);
        excess("address_range");
        *truth.entry(name(device, "linear")).or_default() += mapped;
    }
    truth.retain(|_, bytes| *bytes > 0);
    truth
}

/// Checks that the ledger's requested bytes equal the job's own count at one checkpoint. Returns them.
pub fn assert_requested(checkpoint: &Value, context: &str) -> Totals {
    let own = totals(&checkpoint["own"], |row| &row["requested"]);
    let account = totals(&checkpoint["account"]["totals"], |row| &row["requested"]["current"]);
    assert_eq!(account, own, "requested, {context}");
    own
}

/// Checks one checkpoint of a client by device and class. The ledger's requested bytes equal the job's own count, and
/// its reserved bytes equal the simulator's table. Under passthrough the simulator's requested bytes equal the job's
/// count too.
pub fn assert_agree(checkpoint: &Value, strategy: Strategy, context: &str) {
    let own = assert_requested(checkpoint, context);
    let account = totals(&checkpoint["account"]["totals"], |row| &row["reserved"]["current"]);
    assert_eq!(account, reserved(checkpoint), "reserved, {context}");
    if strategy.name == "passthrough" {
        let truth = totals(&checkpoint["truth"]["totals"], |row| &row["requested"]);
        assert_eq!(truth, own, "the client's own count, {context}");
    }
}

/// Checks that the journal of an ended job has the numbers of the job's last checkpoint.
pub fn assert_journal_agrees(job: &Value, last: &Value, context: &str) {
    for (kind, wanted) in [
        ("requested", totals(&last["own"], |row| &row["requested"])),
        ("reserved", reserved(last)),
    ] {
        let mut told = Totals::new();
        for device in job["devices"].list().iter().chain([&job["host_memory"]]) {
            for class in device["classes"].list() {
                let key = (device["device"].as_i64().unwrap(), class["class"].text().to_owned());
                told.insert(key, class[kind]["current"].number());
            }
            let sum = wanted.iter().filter(|((on, class), _)| {
                Some(*on) == device["device"].as_i64() && !matches!(class.as_str(), "imported" | "address_range")
            });
            let sum: u64 = sum.map(|(_, bytes)| bytes).sum();
            let about = format!("{kind} of device {}, {context}", device["device"]);
            assert_eq!(device[kind]["current"], sum, "{about}");
        }
        told.retain(|_, bytes| *bytes > 0);
        assert_eq!(told, wanted, "{kind} in the journal, {context}");
    }
}

/// A list of live allocations as a multiset of call, size and device.
pub fn live(list: &Value) -> BTreeMap<(String, u64, i64), u32> {
    let mut set = BTreeMap::new();
    for one in list.list() {
        let api = one["api"].text().to_owned();
        *set.entry((api, one["size"].number(), one["device"].as_i64().unwrap()))
            .or_default() += 1;
    }
    set
}

/// The checkpoints among the lines that a client printed.
pub fn checkpoints(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line.get("own").is_some()).collect()
}

/// Checks each of these checkpoints by `assert_agree`.
pub fn assert_all_agree<'a>(checkpoints: impl IntoIterator<Item = &'a Value>, strategy: Strategy, context: &str) {
    for (number, checkpoint) in checkpoints.into_iter().enumerate() {
        let context = format!("{context} {strategy:?}, checkpoint {number}");
        assert_agree(checkpoint, strategy, &context);
    }
}

/// Checks the lines that a client printed, and the journal of the job: every checkpoint, the end of the journal, and the
/// list of allocations that the client did not free.
pub fn assert_whole(lines: &[Value], job: &Value, strategy: Strategy, context: &str) {
    let checkpoints = checkpoints(lines);
    assert!(!checkpoints.is_empty(), "{context}: checkpoints");
    let has_account = checkpoints.iter().all(|one| one["account"].is_object());
    assert!(has_account, "{context}: no account");
    assert_all_agree(checkpoints.iter().copied(), strategy, context);
    assert_journal_agrees(job, checkpoints.last().unwrap(), context);
    assert_ended_well(lines, job, strategy, context);
}

/// Checks that an ended job's journal is complete and has the allocations that the job did not free.
pub fn assert_ended_well(lines: &[Value], job: &Value, strategy: Strategy, context: &str) {
    let wanted = json!({"ended": "exit", "exit_status": 0, "events_lost": 0, "anomalies": 0, "unfinished": 0});
    assert_fields(job, wanted, context);
    assert_eq!(job["strategy"], strategy.name, "{context}");
    let held = lines.iter().find_map(|line| line.get("live")).expect("a live list");
    assert_eq!(live(&job["live"]), live(held), "live at the end, {context}");
}
