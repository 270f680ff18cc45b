//! The main program of app.c for MemorySanitizer, which the GNU compiler does not have. app.c's `main` is `scene` here.
#![no_main]

use std::ffi::{c_char, c_int};

unsafe extern "C" {
    fn scene(count: c_int, arguments: *const *const c_char) -> c_int;
}

#[unsafe(no_mangle)]
pub extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: these are the arguments that the C library gave this program.
    unsafe { scene(count, arguments) }
}
