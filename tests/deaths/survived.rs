//! Jobs that caught a failure: `why` says that they went on.

use support::made::Made;
use support::{MIB, assert_says};

use super::why_of;

/// What a job does after a request that is larger than its device, how it ends, the exit code of `why`, and a part of what
/// it says. The job may allocate again so many seconds after the failure.
#[test]
fn a_job_died_of_its_last_failure_unless_it_went_on() {
    let first = "Ended well: the job recovered from its last failed request, which is explained below\nVerdict: ";
    let went_on = "Ended with exit status 1; not for lack of device memory: the job went on after its last failed \
                   request, which is explained below\nVerdict: ";
    // An exception that the job does not catch frees memory before the process is killed, and other threads may allocate
    // some meanwhile.
    let way_out = "the job freed 1 allocation after it, as on its way out, and allocated nothing";
    let killed =
        "Ended without exit: killed or crashed, by a signal that is not known; not for lack of device memory: the job";
    let larger = "Verdict: larger than the device";
    let nothing = "; the job allocated nothing after it";
    for (again_s, frees, exit, code, says) in [
        (0, true, Some(0), 0, first),
        (0, false, Some(0), 0, first),
        (
            0,
            true,
            Some(0),
            0,
            "Out of memory once, and the job went on: the last was cudaMalloc of 2.00 GiB",
        ),
        (0, true, Some(0), 0, "then 1 free followed"),
        (
            0,
            false,
            Some(0),
            0,
            "; the job made no further allocation and ended well",
        ),
        (0, true, None, 11, way_out),
        (1, true, None, 11, larger),
        (0, false, Some(1), 11, nothing),
        (0, true, Some(1), 11, nothing),
        (0, false, None, 11, nothing),
        (11, false, Some(1), 0, went_on),
        (2, false, Some(1), 11, larger),
        (11, false, None, 0, killed),
    ] {
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
        let told = why_of(&job.end(exit).unwrap());
        assert_eq!(told.code, Some(code), "{}", told.text);
        assert_says(&told.text, says);
    }
}
