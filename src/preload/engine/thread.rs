//! Threads of the library inside the job.
//!
//! The job's signals are for the job's own threads. A thread of the library blocks all signals from its first moment:
//! a new thread inherits the signal mask, so the mask is set before the thread starts.
//!
//! A process whose first thread called `pthread_exit` ends with its last thread (pthread_exit(3)). So a thread of the library
//! that waits for the job asks from time to time whether one of the job's is left, and ends if none is.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use base::file::names_in;
use base::identity::{state_of, thread_id};

/// The ids of the library's threads; 0 is a free place. A thread that finds no place counts as one of the job's.
static OURS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];

/// How often a thread of the library asks whether a thread of the job is left.
pub const LOOK_PERIOD: Duration = Duration::from_millis(500);

pub fn start(thread: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = || {
        let id = thread_id();
        let place = OURS
            .iter()
            .find(|place| place.compare_exchange(0, id, Relaxed, Relaxed).is_ok());
        work();
        place.inspect(|place| place.store(0, Relaxed));
    };
    // SAFETY: the signal sets are plain data of this frame, and the calling thread's mask is put back to what it was.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = thread.spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        started.map(drop)
    }
}

/// A forked child has none of the threads.
pub fn in_forked_child() {
    OURS.iter().for_each(|place| place.store(0, Relaxed));
}

/// When a thread of the library last asked whether the job has threads.
pub struct Job(Instant);

impl Job {
    pub fn new() -> Job {
        Job(Instant::now())
    }

    /// Whether the calling thread of the library is of use no more, because each thread of the job has ended. Looks at most
    /// every `LOOK_PERIOD`.
    pub fn has_ended(&mut self) -> bool {
        if self.0.elapsed() < LOOK_PERIOD {
            return false;
        }
        self.0 = Instant::now();
        // A thread that starts another one and ends may be missed, and the other one too. The second look sees that one.
        only_ours_is_left() && {
            sleep(Duration::from_millis(20));
            only_ours_is_left()
        }
    }
}

/// Whether the process's first thread has ended, and each other thread is the library's. `false` where the kernel does not tell.
fn only_ours_is_left() -> bool {
    let first = std::process::id();
    let threads = Path::new("/proc/self/task");
    if state_of(&threads.join(first.to_string())) != Some(b'Z') {
        return false;
    }
    let mut sees_this = false;
    for name in names_in(threads) {
        let id = name.to_str().and_then(|name| name.parse().ok());
        sees_this |= id == Some(thread_id());
        let is_ours = |id| OURS.iter().any(|place| place.load(Relaxed) == id);
        if !id.is_some_and(|id| id == first || is_ours(id)) {
            return false;
        }
    }
    sees_this
}
