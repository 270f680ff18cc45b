//! What cannot be shared is a clear error, and leaves nothing behind.

use super::*;

#[test]
fn memory_that_the_driver_cannot_share_is_a_clear_error() {
    for faults in [
        "cuMemExportToShareableHandle:1+=801",
        "cuMemImportFromShareableHandle:1+=801",
    ] {
        let exports = faults.contains("Export");
        let mut owner = Process::start(job(AUTO_GROWTH).env("SIMGPU_FAULTS", faults));
        let mut user = Process::start(job(AUTO_GROWTH).env("SIMGPU_FAULTS", faults));
        owner.well("alloc shared 100000");
        assert_eq!(owner.tell("capable shared"), if exports { "0" } else { "1" });
        let said = if exports {
            assert_eq!(owner.tell("get shared"), "801");
            owner.end()
        } else {
            let handle = owner.well("get shared");
            assert_eq!(user.opens("x", &handle), "801");
            assert_eq!(user.imported(), (0, 0, 0));
            user.end()
        };
        assert_eq!(said.len(), 1, "{said:?}");
        assert_says(&said[0], "naive_best_fit");
        assert_says(&said[0], "passthrough");
    }
}

/// The advice names another strategy than the one in force.
#[test]
fn a_segment_that_the_driver_cannot_share_is_a_clear_error() {
    for strategy in [NAIVE_BEST_FIT, IN_CHUNKS] {
        let mut owner = Process::start(job(strategy).env("SIMGPU_FAULTS", "cuIpcGetMemHandle:1+=801"));
        owner.well("alloc shared 100000");
        assert_eq!(owner.tell("get shared"), "801");
        let said = owner.end();
        let advice = said
            .iter()
            .filter(|words| words.contains("VRAMSHIM_STRATEGY=passthrough"));
        assert_eq!(advice.count(), 1, "{said:?}");
        assert!(!said.iter().any(|words| words.contains("naive_best_fit")), "{said:?}");
    }
}

#[test]
fn a_failure_half_way_leaves_nothing_behind() {
    for faults in ["cuMemMap:3=999", "cuMemSetAccess:1=999", "cuMemAddressReserve:1=999"] {
        let mut owner = Process::start(job(AUTO_GROWTH));
        let mut user = Process::start(job(AUTO_GROWTH).env("SIMGPU_FAULTS", faults));
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

#[test]
fn peer_access_holds_for_memory_mapped_before_and_after() {
    let mut one = Process::start(job(AUTO_GROWTH));
    one.well("alloc before 3000000");
    assert_eq!(one.tell("access before 0"), "3");
    assert_eq!(one.tell("access before 1"), "0");
    one.well("device 1");
    one.well("peer 0");
    assert_eq!(one.tell("access before 1"), "3");
    one.well("device 0");
    one.well(&format!("alloc after {}", 40 * MIB));
    assert_eq!(one.tell("access after 1"), "3");
    assert_eq!(one.end(), [""; 0]);
}
