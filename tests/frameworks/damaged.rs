//! A message with a damaged length reaches a real server, under the guard of host memory.

use support::library;

use super::{job_of, python, script};

#[test]
fn a_damaged_length_ends_no_job() {
    let guard = library().with_file_name("libvramshim_hostguard.so");
    let job = job_of(python()).args([script("damaged_length.py")]).preload(guard);
    let finished = job.env("VRAMSHIM_HOST_GUARD", "256GiB").run().ok();
    let (out, errors) = (&finished.stdout, &finished.stderr);
    assert!(out.contains("closed\nsurvived 1 2"), "{out}\n{errors}");
    assert!(errors.contains("vramshim host guard: malloc of 96217"), "{errors}");
    assert!(errors.contains("libtorch_cpu.so+0x"), "the stack: {errors}");
}
