//! Ends `--watch` between two rounds. The signals that end the program are blocked, and only the wait between two
//! rounds accepts them. A round in progress is therefore printed to its end.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

pub struct Interruptions(libc::sigset_t);

impl Interruptions {
    /// Blocks the signals from now on.
    pub fn hold() -> Self {
        let mut signals = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set before the other calls use it.
        unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(signals.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), ptr::null_mut());
            Self(signals.assume_init())
        }
    }

    /// Waits for `time`. Returns true as soon as one of the blocked signals is pending.
    pub fn came_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let time = libc::timespec {
                tv_sec: left.as_secs() as libc::time_t,
                tv_nsec: left.subsec_nanos().into(),
            };
            // SAFETY: the set and the time outlive the call, and the pointer for details of the signal may be NULL.
            if unsafe { libc::sigtimedwait(&self.0, ptr::null_mut(), &time) } > 0 {
                return true;
            }
            // Another signal may have interrupted the wait.
            if left.is_zero() {
                return false;
            }
        }
    }
}
