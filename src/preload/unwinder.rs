//! Functions of an unwinder that does not unwind, in place of those of `libgcc_s.so.1`.
//!
//! Rust's standard library refers to the unwinder even in a library that aborts on panic. If the library needed
//! `libgcc_s.so.1`, then no program would start in a chroot or an image without that file, and the loader would map it into
//! every process that inherits the preload. So the names are defined here, hidden in this library. A panic ends in `abort`
//! with its message and without a backtrace. Nothing else of the library unwinds.

use std::arch::global_asm;

/// `_Unwind_Backtrace` and `_Unwind_RaiseException` answer `_URC_END_OF_STACK` (5): there is no frame. The others are only
/// called while frames are unwound.
macro_rules! unwinder {
    ($answer:literal, $stop:literal) => {
        unwinder!(@each $answer, _Unwind_Backtrace _Unwind_RaiseException);
        unwinder!(@each $stop,
            _Unwind_DeleteException _Unwind_GetCFA _Unwind_GetDataRelBase _Unwind_GetIP _Unwind_GetIPInfo
            _Unwind_GetLanguageSpecificData _Unwind_GetRegionStart _Unwind_GetTextRelBase _Unwind_Resume
            _Unwind_SetGR _Unwind_SetIP _Unwind_FindEnclosingFunction);
    };
    (@each $code:literal, $($name:ident)*) => {
        $(global_asm!(
            ".text",
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            $code,
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
        );)*
    };
}

#[cfg(target_arch = "x86_64")]
unwinder!("mov eax, 5\nret", "ud2");
#[cfg(target_arch = "aarch64")]
unwinder!("mov w0, #5\nret", "brk #1");
