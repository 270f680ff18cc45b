//! What cannot be shared is a clear error, and leaves nothing behind.

use std::process::Command;

use support::left_out;

use super::*;

/// The advice names another strategy than the one in force.
#[test]
fn memory_that_the_driver_cannot_share_is_a_clear_error() {
    let two = ["naive_best_fit", "passthrough"];
    for (strategy, call, others) in [
        (AUTO_GROWTH, "cuMemExportToShareableHandle", &two[..]),
        (AUTO_GROWTH, "cuMemImportFromShareableHandle", &two),
        (NAIVE_BEST_FIT, "cuIpcGetMemHandle", &["VRAMSHIM_STRATEGY=passthrough"]),
        (IN_CHUNKS, "cuIpcGetMemHandle", &["VRAMSHIM_STRATEGY=passthrough"]),
    ] {
        let start = || Process::start(job(strategy).env("SIMGPU_FAULTS", format!("{call}:1+=801")));
        let (mut owner, mut user) = (start(), start());
        owner.well("alloc shared 100000");
        let capable = owner.tell("capable shared") == "1";
        assert!(capable || call.contains("Export"), "{call}");
        let answer = owner.tell("get shared");
        let said = if let Some(handle) = answer.strip_prefix("0 ") {
            assert_eq!(user.opens("x", handle), "801");
            assert_eq!(user.imported(), (0, 0, 0));
            user.end()
        } else {
            assert_eq!(answer, "801");
            owner.end()
        };
        assert_eq!(said.len(), 1, "{said:?}");
        others.iter().for_each(|words| assert_says(&said[0], words));
        assert!(others.len() > 1 || !said[0].contains("naive_best_fit"), "{said:?}");
    }
}

#[test]
fn a_failure_half_way_leaves_nothing_behind() {
    for faults in ["cuMemMap:3=999", "cuMemSetAccess:1=999", "cuMemAddressReserve:1=999"] {
        let mut owner = Process::start(job(AUTO_GROWTH));
        let mut user = Process::start(job(AUTO_GROWTH).env("SIMGPU_FAULTS", faults));
        // The memory of three blocks is three handles, side by side.
        for order in [format!("alloc part# {}", 3 * MIB), "free part#".to_owned()] {
            (0..3).for_each(|number| drop(owner.well(&order.replace('#', &number.to_string()))));
        }
        owner.well(&format!("alloc shared {}", 9 * MIB));
        owner.well("fill shared 6");
        let handle = owner.well("get shared");
        assert_eq!(user.opens("x", &handle), "999", "{faults}");
        assert_eq!(user.imported(), (0, 0, 0), "{faults}");
        user.well(&format!("open x {handle}"));
        assert_eq!(user.tell("check x 6"), "right", "{faults}: the second time it works");
        assert_eq!(user.end().len(), 1);
        owner.end();
    }
}

/// In a user namespace that maps nobody, each user of the host has the same number as the job's own.
#[test]
fn a_user_whom_the_namespace_does_not_map_gets_no_memory() {
    let can = Command::new("unshare").args(["-U", "true"]).status();
    // SAFETY: has no preconditions.
    if !can.is_ok_and(|status| status.success()) || unsafe { libc::geteuid() } != 0 {
        return left_out("root must be able to make a user namespace, and enter it");
    }
    let program = client("ipc/ipc.c", "ipc", &["libcuda.so.1"]);
    let under = |command: &str, arguments: &[&str]| {
        Process::start(Job::new(command).args(arguments).args([&program]).strategy(AUTO_GROWTH))
    };
    let mut owner = under("unshare", &["-U"]);
    owner.well("alloc shared 100000");
    let handle = owner.well("get shared");
    let mut outside = Process::start(job(AUTO_GROWTH));
    assert_ne!(outside.opens("x", &handle), "0");
    let target = format!("--target={}", owner.0.child.id());
    let mut inside = under("nsenter", &["--user", "--preserve-credentials", &target]);
    inside.well(&format!("open x {handle}"));
    inside.well("close x");
    for process in [owner, outside, inside] {
        process.kill();
    }
}
