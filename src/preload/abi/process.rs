//! The exported `_exit` and `_Exit`, which end a process without its exit handlers: the journal is told of the end first.

use std::ffi::{CStr, c_int, c_void};
use std::mem;

use crate::engine;
use crate::next::{c_name, elf};

/// Ends the process through the next function of this name, which may be that of another preloaded tool. The search takes no
/// lock, because `_exit` may be called in a signal handler and in a child of `fork` or `vfork`.
fn end(name: &CStr, status: c_int) -> ! {
    engine::process_ends(status);
    if let Some(next) = elf::next_function(name) {
        // SAFETY: the function of this name has this signature.
        let next = unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(next) };
        // SAFETY: the caller's own argument.
        unsafe { next(status) };
    }
    loop {
        // SAFETY: the system call that `_exit` is documented to make.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

macro_rules! export {
    ($($name:ident)+) => {$(
        /// # Safety
        /// As `_exit(2)` and `_Exit(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(status: c_int) -> ! {
            end(c_name!($name), status)
        }
    )+};
}

export! { _exit _Exit }
