//! Signals that a system call of the library would raise in the job.

use std::ptr;

/// A write beyond the limit on the size of files raises SIGXFSZ, and a write to a pipe that nobody reads raises SIGPIPE.
/// Each of these signals ends a process that is not prepared for it.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGXFSZ, libc::SIGPIPE];

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: the set is plain data, which `sigemptyset` makes valid, and the pointers are to a variable of this frame.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Runs a call that writes or that makes a file longer. If it cannot, it fails with EFBIG or EPIPE, and the job gets no
/// signal. `errno` is that of the call. A look at the limits beforehand would not suffice: another thread may change them meanwhile.
pub fn without_signals_of_writes<T>(call: impl FnOnce() -> T) -> T {
    let mut before = set_of(&[]);
    let mut pending = set_of(&[]);
    // SAFETY: all sets are variables of this frame.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &set_of(&OF_WRITES), &mut before);
        libc::sigpending(&mut pending);
    }
    let outcome = call();
    let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above. The kernel sends these signals to the thread that writes, so it is this thread that takes them. One
    // that was pending before is the job's, and stays.
    unsafe {
        let failed_with = *libc::__errno_location();
        for signal in OF_WRITES {
            if libc::sigismember(&pending, signal) == 0 {
                libc::sigtimedwait(&set_of(&[signal]), ptr::null_mut(), &no_wait);
            }
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        *libc::__errno_location() = failed_with;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_to_a_pipe_that_nobody_reads_is_an_error_alone() {
        let mut ends = [0; 2];
        // SAFETY: the pipe's ends belong to this test. SIGPIPE gets its default action, which ends the process; Rust
        // ignores it from the start.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            libc::close(ends[0]);
            let ignored = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            let written = without_signals_of_writes(|| libc::write(ends[1], c"x".as_ptr().cast(), 1));
            assert_eq!((written, *libc::__errno_location()), (-1, libc::EPIPE));
            libc::signal(libc::SIGPIPE, ignored);
            libc::close(ends[1]);
        }
    }
}
