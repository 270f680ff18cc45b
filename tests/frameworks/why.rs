//! Why PyTorch ran out of memory: what its cache held free is told apart from its tensors.

use std::process::Command;

use serde_json::Value;
use support::{Job, program, simulated};

use super::{python, script};

#[test]
fn a_cache_in_pieces_is_told_by_pytorchs_own_figures() {
    let simulator = simulated("libcuda.so.1");
    let job = Job::new(program())
        .alone()
        .without("LD_LIBRARY_PATH")
        .env("VRAMSHIM_SIMGPU", simulator.parent().unwrap());
    let job = job.args(["run", "--sim", "24GiB", "--torch", "record", "--"]);
    let finished = job.args([python(), script("fragmented.py")]).run();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let figures: Vec<u64> = finished
        .stdout
        .split_whitespace()
        .filter_map(|figure| figure.parse().ok())
        .collect();
    let [allocated, reserved] = figures[..] else {
        panic!("{}", finished.stdout)
    };
    let folder = finished.folder.path().join("journals");
    let output = Command::new(program())
        .args(["why", "--json"])
        .arg(folder)
        .output()
        .unwrap();
    let page: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(page["why"]["verdict"], "cached_but_unusable", "{page:#}");
    assert_eq!(output.status.code(), Some(14));
    let ledger = &page["why"]["ledger"];
    assert_eq!(
        (&ledger["live"], &ledger["cached"]),
        (&allocated.into(), &(reserved - allocated).into())
    );
    assert_eq!(ledger["unknown"], 0);
    assert_eq!(page["why"]["failure"]["tries"], 2);
}
