//! The journal of `libvramshim.so`, if that library is in the process too: it gets each refusal.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::next::Next;

/// `vramshim_host_refused` of `shim.h`. It may be called inside `malloc`, and in a signal handler.
type Refused = unsafe extern "C" fn(*const c_char, u64, u64);

static REFUSED: Next = Next::of_all(c"vramshim_host_refused");
/// The function was looked for, and `libvramshim.so` is not in the process.
static IS_ABSENT: AtomicBool = AtomicBool::new(false);

/// `call` was refused `size` bytes, because of a bound of `bound` bytes.
pub fn note(call: &CStr, size: usize, bound: usize) {
    if IS_ABSENT.load(Relaxed) {
        return;
    }
    let Some(refused) = REFUSED.address() else {
        return IS_ABSENT.store(true, Relaxed);
    };
    // SAFETY: the address is that of `vramshim_host_refused`, which has this type.
    let refused: Refused = unsafe { std::mem::transmute::<usize, Refused>(refused) };
    // SAFETY: the name is a C string.
    unsafe { refused(call.as_ptr(), size as u64, bound as u64) };
}
