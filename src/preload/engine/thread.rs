//! Threads of the library inside the job.
//!
//! The job's signals are for the job's own threads. A thread of the library blocks all signals from its first moment:
//! a new thread inherits the signal mask, so the mask is set before the thread starts.

use std::thread::Builder;
use std::{io, mem, ptr};

pub fn start(thread: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
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
