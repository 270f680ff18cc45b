//! The two clocks of the header are those of one moment, so that the time of day of each event is right.

use std::time::Duration;

use super::open;
use support::{Job, client};

/// How much CLOCK_REALTIME is ahead of CLOCK_MONOTONIC, in nanoseconds.
fn ahead() -> i128 {
    let now = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writing.
        unsafe { libc::clock_gettime(clock, &mut time) };
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    now(libc::CLOCK_REALTIME) - now(libc::CLOCK_MONOTONIC)
}

#[test]
fn a_disk_that_is_slow_to_allocate_puts_no_clock_off() {
    const AN_HOUR: i128 = Duration::from_secs(3600).as_nanos() as i128;
    let slow = client("journal/slow_disk.c", "libslow_disk.so", &["-shared", "-fPIC"]);
    let path = client("support/clients/training.c", "training", &[]);
    let finished = Job::new(path).preload_in_front(slow).args(["2"]).run().ok();
    let journal = open(&finished.journals()[0]);
    let header = journal.header();
    let told = i128::from(header.wall_start_ns) - i128::from(header.mono_start_ns);
    assert!((told - ahead()).abs() < AN_HOUR, "{told} ns, and it is {} ns", ahead());
}
