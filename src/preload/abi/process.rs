//! The exported `_exit` and `_Exit`, which end a process without its exit handlers: the journal is told of the end first.

use crate::engine;

/// # Safety
/// As `_exit(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: i32) -> ! {
    engine::process_ends(status);
    // SAFETY: this is the system call that `_exit` is documented to make, and it does not return.
    unsafe {
        libc::syscall(libc::SYS_exit_group, status);
        core::hint::unreachable_unchecked()
    }
}

/// # Safety
/// As `_Exit(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: i32) -> ! {
    // SAFETY: the same contract.
    unsafe { _exit(status) }
}
