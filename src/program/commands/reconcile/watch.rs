//! Ctrl-C between rounds: the signals that end a watch are held back, and looked for while it waits. No handler is needed,
//! and what is being printed is finished first.

use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

pub struct Interruptions(libc::sigset_t);

impl Interruptions {
    /// Holds them back from here on.
    pub fn hold() -> Self {
        let mut signals = MaybeUninit::uninit();
        // SAFETY: sigemptyset makes the set; the rest use it after that.
        unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(signals.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), ptr::null_mut());
            Self(signals.assume_init())
        }
    }

    /// Waits; whether one came since they are held back, at once if so.
    pub fn came_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let time = libc::timespec {
                tv_sec: left.as_secs() as libc::time_t,
                tv_nsec: left.subsec_nanos().into(),
            };
            // SAFETY: both structs outlive the call, and nothing is asked about the signal.
            if unsafe { libc::sigtimedwait(&self.0, ptr::null_mut(), &time) } > 0 {
                return true;
            }
            // It may have been woken for a signal that is none of these.
            if left.is_zero() {
                return false;
            }
        }
    }
}
