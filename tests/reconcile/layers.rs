//! Jobs over a layer: what `reconcile` and `top` say of the layer's book, and of a layer in place of NVML.

use std::time::Duration;

use serde_json::Value;
use support::layer::{Form, Habits};
use support::member::Member;
use support::{Fields, Job, MIB, PASSTHROUGH, assert_says, client, simulated};

use super::holder::{holder, host, look, only};

fn notes(device: &Value) -> String {
    let notes = device["notes"].list();
    notes.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

/// The second measurement comes a second after the first one.
fn measured_again(job: Member) -> Member {
    std::thread::sleep(Duration::from_millis(1100));
    job.with(&["alloc 1"])
}

#[test]
fn the_drift_of_a_layers_book_is_told() {
    const ALL: Habits = &[];
    const WITHOUT_ARRAYS: Habits = &[("LAYER_ARRAYS", "uncounted")];
    for (habits, drift, words) in [
        (ALL, 0, "no drift since the first measurement"),
        (WITHOUT_ARRAYS, -64, "book grew 64.0 MiB less: it does not count all"),
    ] {
        let (_folder, state) = host();
        let job = holder(&state)
            .strategy(PASSTHROUGH)
            .over(Form::Preloaded, "2GiB", habits);
        let job = measured_again(Member::start(job).with(&["device 0", "alloc 3", "array 64"]));
        let (page, _) = look(&[&job.pid()]);
        let (device, process) = only(&page);
        assert_eq!(process["layer"]["drift"].as_i64(), Some(drift * MIB as i64), "{page:#}");
        assert!(process["layer"]["path"].text().ends_with("liblayer.so"));
        assert_says(&notes(device), words);
    }
    // One measurement tells no drift.
    let (_folder, state) = host();
    let job = Member::start(holder(&state).over(Form::Preloaded, "2GiB", ALL)).with(&["device 0", "alloc 3"]);
    let (page, _) = look(&[&job.pid()]);
    assert_eq!(only(&page).1["layer"]["drift"], Value::Null, "{page:#}");
    assert_says(&notes(only(&page).0), "it was measured once, so a drift is not known");
    // Without a layer nothing is said of one.
    let (_folder, state) = host();
    let job = Member::start(holder(&state)).with(&["device 0", "alloc 3"]);
    let (page, _) = look(&[&job.pid()]);
    assert_eq!(only(&page).1["layer"], Value::Null, "{page:#}");
}

/// The layer is installed as `libnvidia-ml.so.1`, and loads the driver's own library.
#[test]
fn a_layer_in_place_of_nvml_is_named() {
    let real = format!("-DREAL=\"{}\"", simulated("libnvidia-ml.so.1").display());
    let arguments = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", &real];
    let built = client("reconcile/nvml_layer.c", "nvml-layer.so", &arguments);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(built, folder.path().join("libnvidia-ml.so.1")).expect("a copy");
    let driver = simulated("libcuda.so.1");
    let folders = [folder.path(), driver.parent().expect("its folder")];
    let folders = std::env::join_paths(folders).expect("folders without a colon");
    let (_folder, state) = host();
    let over = |job: Job| job.env("LD_LIBRARY_PATH", &folders);
    let job = Member::start(over(holder(&state))).with(&["device 0", "alloc 64"]);
    let (page, code) = look(&[&job.pid()]);
    let (device, _) = only(&page);
    let is_named = |value: &Value| {
        value
            .as_str()
            .is_some_and(|path| path.starts_with(&*folder.path().to_string_lossy()))
    };
    assert!(code == 0 && is_named(&device["nvml"]["layer"]), "{page:#}");
    assert_says(&notes(device), "NVML's figures here are those of a layer");
    let top = Job::new(support::program())
        .alone()
        .args(["top", "--once", "--json", &job.pid()])
        .run()
        .ok();
    let page: Value = serde_json::from_str(&top.stdout).expect("JSON");
    let layer = page["nvml_layer"].as_str().unwrap_or_else(|| panic!("{page:#}"));
    assert_says(layer, "NVML's figures of the devices are those of a layer");
    // NVML itself answers the next job.
    let job = Member::start(holder(&state)).with(&["device 0", "alloc 64"]);
    let (page, _) = look(&[&job.pid()]);
    assert_eq!(page["devices"][0]["nvml"]["layer"], Value::Null, "{page:#}");
}
