//! What happens to this program and to its job when the reader of a pipe has ended (SIGPIPE).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What the program was started with.
static INHERITED: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// Runs before Rust's runtime, which ignores the signal and forgets what it was.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    // SAFETY: the call writes one structure of ours and changes nothing.
    unsafe {
        let mut inherited: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut inherited) == 0 {
            INHERITED.store(inherited.sa_sigaction, Relaxed);
        }
    }
}

fn set(action: libc::sighandler_t) {
    // SAFETY: numbers only; neither action has a handler.
    unsafe { libc::signal(libc::SIGPIPE, action) };
}

/// The default action lets `vramshim inspect | head` end quietly. Messages on stderr raise no signal (`say`).
pub fn ends_this_program() {
    set(libc::SIG_DFL);
}

/// The job gets the signal as this program got it: a service of systemd ignores it.
pub fn is_as_inherited() {
    set(INHERITED.load(Relaxed));
}
