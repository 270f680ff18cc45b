//! Jobs that caught a failure: `why` says that they went on.

use std::process::Command;

use support::MIB;
use support::made::Made;
use support::program;

/// What a job does after a request that is larger than its device, and how it ends: the exit code of `why`, and a part of
/// what it says.
#[track_caller]
fn assert_told(frees: bool, exit: Option<i32>, code: i32, says: &str) {
    assert_told_after(0, frees, exit, code, says);
}

/// The same for a job that allocates again so many seconds after the failure.
#[track_caller]
fn assert_told_after(again_s: u64, frees: bool, exit: Option<i32>, code: i32, says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::new(folder.path(), 70, 0).unwrap();
    let block = job.alloc(0, 200 * MIB, 0).unwrap();
    job.fail(2048 * MIB).unwrap();
    if frees {
        job.free(0, block, 200 * MIB).unwrap();
    }
    if again_s > 0 {
        job.wait(again_s * 1_000_000_000);
        job.alloc(0, MIB, 0).unwrap();
    }
    let path = job.end(exit).unwrap();
    let output = Command::new(program()).arg("why").arg(&path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(says), "{text}");
}

#[test]
fn a_job_that_ended_well_did_not_die_of_its_last_failure() {
    let went_on = "Out of memory once, and the job went on: the last was cudaMalloc of 2.00 GiB";
    let first = "Ended well: the job recovered from its last failed request, which is explained below\nVerdict: ";
    assert_told(true, Some(0), 0, first);
    assert_told(false, Some(0), 0, first);
    assert_told(true, Some(0), 0, went_on);
    assert_told(true, Some(0), 0, "then 1 free followed");
    assert_told(false, Some(0), 0, "; the job made no further allocation and ended well");
}

/// An exception that the job does not catch frees memory before the process is killed, and other threads may allocate some
/// meanwhile.
#[test]
fn a_job_that_is_killed_soon_after_its_last_failure_died_of_it() {
    let out = "the job freed 1 allocation after it, as on its way out, and allocated nothing";
    assert_told(true, None, 11, out);
    assert_told_after(1, true, None, 11, "Verdict: larger than the device");
}

#[test]
fn a_job_that_did_nothing_more_or_ended_with_an_error_died_of_its_last_failure() {
    for frees in [false, true] {
        assert_told(frees, Some(1), 11, "; the job allocated nothing after it");
    }
    assert_told(false, None, 11, "; the job allocated nothing after it");
}

#[test]
fn a_job_that_ends_long_after_a_failure_ended_for_another_reason() {
    let went_on = "Ended with exit status 1; not for lack of device memory: the job went on after its last failed \
                   request, which is explained below\nVerdict: ";
    assert_told_after(11, false, Some(1), 0, went_on);
    assert_told_after(2, false, Some(1), 11, "Verdict: larger than the device");
    let killed =
        "Ended without exit: killed or crashed, by a signal that is not known; not for lack of device memory: the job";
    assert_told_after(11, false, None, 0, killed);
}
