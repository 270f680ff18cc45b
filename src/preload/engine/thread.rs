//! Threads of ours inside the job. The job's signals are for the job's own threads: ours block them all from their first
//! moment, because a new thread inherits the mask.

use std::thread::Builder;
use std::{io, mem, ptr};

pub fn start(thread: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: signal sets are plain data of this frame; the mask is put back to what it was.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = thread.spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        started.map(drop)
    }
}
