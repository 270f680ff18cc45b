//! `vramshim reconcile` on journals of ended processes. The journals are written here, with chosen measurements.

use std::path::{Path, PathBuf};

use base::api::{Api, Class};
use journal::format::{Device, Event, MemInfo, Teller};
use journal::writer::About;
use serde_json::{Value, json};

use crate::reconcile::holder::{differences, look, only, reconcile};
use support::made::{Made, direct};
use support::{Fields, MIB, Runs, assert_fields, assert_says, vramshim};

/// The API of a call, and the event that the call made.
pub type Step = (Api, Event);

/// A measurement, with all figures in bytes. `nvml` is 0 if NVML reports nothing.
pub fn measurement(total: u64, free: u64, nvml: u64, reserved: u64) -> Event {
    Event::Measured {
        mem_info: Some(MemInfo { total, free }),
        told_by: Teller::NotKnown,
        process_bytes: (nvml > 0).then_some(nvml),
        reserved,
    }
}

/// A measurement of a device of 4 GiB. The arguments are in MiB.
fn measured(used: u64, nvml: u64, reserved: u64) -> Step {
    let event = measurement(4096 * MIB, (4096 - used) * MIB, nvml * MIB, reserved * MIB);
    (Api::Policy, event)
}

fn alloc(address: u64, mib: u64) -> Step {
    (Api::cuMemAlloc, direct(Class::Linear, address * MIB, mib * MIB))
}

/// Writes a journal with these records. If `said` is false, the journal has no end, as after a kill.
fn gone(folder: &Path, records: &[Step], said: bool) -> PathBuf {
    let about = About {
        pid: 1000 + 2 * records.len() as u32 + u32::from(said),
        strategy: "passthrough".into(),
        ..About::default()
    };
    let device = Device {
        total_memory: 4096 * MIB,
        uuid: [0xab; 16],
        name: "Simulated GPU\x1b[31m".into(),
        ..Device::default()
    };
    let mut made = Made::about(folder, &about, &[device]).unwrap();
    for &(api, event) in records {
        made.happened(0, api, event).unwrap();
    }
    made.end(said.then_some(0)).unwrap()
}

#[test]
fn an_ended_job_is_reconciled_with_its_last_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let records = [
        measured(1300, 300, 0),
        alloc(1024, 64),
        measured(1384, 384, 64),
        alloc(2048, 16), // after the last measurement
    ];
    for said in [true, false] {
        let path = gone(folder.path(), &records, said);
        let (page, code) = look(&[path.to_str().unwrap()]);
        let (device, process) = only(&page);
        assert_eq!(code, 0);
        assert_fields(device, json!({"nvml": null, "other_processes": 1000 * MIB}), "");
        let wanted = json!({"nvml_used": 384 * MIB, "context_basis": "nvml"});
        assert_fields(process, wanted, "");
        assert_eq!(process["ledger"]["reserved"], 64 * MIB);
        assert_eq!(differences(process), [300, 0, 0, 0, 20]);
        assert!(device["time"].text().ends_with('Z'));
        assert_eq!(look(&[path.to_str().unwrap(), "--bound", "19MiB"]).1, 1);
    }
    let (page, code) = look(&[folder.path().to_str().unwrap()]);
    assert_eq!((code, page["devices"].list().len()), (0, 2));
    // Escape sequences in a journal do not reach the terminal.
    let text = vramshim(&["reconcile", folder.path().to_str().unwrap()]).text;
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn without_nvmls_figure_a_context_is_limited_to_a_plausible_size() {
    let folder = tempfile::tempdir().unwrap();
    // At first the process is alone. Later 700 MiB are used that the ledger does not have, and no figure tells by which
    // process.
    let records = [measured(300, 0, 0), alloc(1024, 64), measured(1064, 0, 64)];
    let path = gone(folder.path(), &records, true);
    let (page, code) = look(&[path.to_str().unwrap()]);
    let (device, process) = only(&page);
    // Who else was there is not known.
    assert_eq!((code, &process["context_basis"]), (1, &"device_or_others".into()));
    assert_eq!(differences(process), [300, 0, 0, 0, 700]);
    let wanted = json!({"other_processes": null, "unknown": 700 * MIB});
    assert_fields(device, wanted, "");
    // No context takes 2000 MiB, so another process was on the device.
    let path = gone(folder.path(), &[measured(2000, 0, 0), measured(2000, 0, 0)], true);
    let (page, code) = look(&[path.to_str().unwrap()]);
    let (_, process) = only(&page);
    assert_eq!((code, &process["context_basis"]), (1, &Value::Null));
    assert_eq!(differences(process), [0, 0, 0, 0, 2000]);
}

#[test]
fn a_journal_without_measurements_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let plain = gone(folder.path(), &[alloc(1024, 64)], true);
    let (page, code) = look(&[plain.to_str().unwrap()]);
    assert_eq!((code, &only(&page).0["compared"]), (1, &false.into()));
}

#[test]
fn what_was_obtained_after_the_last_measurement_is_not_within_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let records = [measured(300, 300, 0), alloc(1024, 2000)];
    let path = gone(folder.path(), &records, false);
    let (page, code) = look(&[path.to_str().unwrap()]);
    assert_eq!((code, &page["within_bound"]), (1, &false.into()));
    assert_eq!(page["devices"][0]["newer_than_measurement"], 2000 * MIB);
    let text = vramshim(&["reconcile", path.to_str().unwrap()]).text;
    assert_says(&text, "Not known: 1.95 GiB were obtained after the last measurement");
    // A process that ended well has nothing that could disagree.
    let path = gone(folder.path(), &records, true);
    let (page, code) = look(&[path.to_str().unwrap()]);
    assert_eq!((code, &page["within_bound"]), (0, &true.into()));
    assert_eq!(page["devices"][0]["newer_than_measurement"], 2000 * MIB);
    let notes = page["devices"][0]["notes"].to_string();
    assert_says(&notes, "1.95 GiB were obtained after the last measurement");
}

#[test]
fn one_bad_file_does_not_end_the_comparison() {
    let folder = tempfile::tempdir().unwrap();
    gone(folder.path(), &[measured(300, 300, 0)], true);
    std::fs::write(folder.path().join("bad.vraj"), "nothing of the kind").unwrap();
    let output = reconcile(&[folder.path()]).arg("--json").printed();
    assert_eq!(output.code, Some(1));
    assert_says(&output.said, "bad.vraj: not a vramshim journal");
    assert_eq!(output.json()["devices"].list().len(), 1);
}

/// A neighbour that gives its memory back shows in what the driver has in use outside the ledger.
#[test]
fn what_others_gave_back_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let told = |records: &[Step]| {
        let path = gone(folder.path(), records, true);
        vramshim(&["reconcile", path.to_str().unwrap()]).text
    };
    let last = measured(364, 0, 64);
    let text = told(&[measured(2300, 0, 0), alloc(1024, 64), last]);
    assert_says(&text, "others held at least 1.95 GiB and gave them back");
    assert_says(&text, "context, or of others");
    let steady = told(&[measured(300, 0, 0), alloc(1024, 64), last, last]);
    assert!(!steady.contains("gave them back"), "{steady}");
}
