//! Cancellation of threads (`pthread_cancel`).
//!
//! Some calls of the C library that this library makes, such as `write` and `getrandom`, end a thread that was cancelled.
//! They would unwind frames of Rust, which ends the process, or leave a lock locked. So no thread is cancelled inside a call
//! of the library that makes any. A cancellation that comes meanwhile stays pending until the thread's next call of that
//! kind.

use std::ffi::c_int;
use std::ptr;

/// `PTHREAD_CANCEL_DISABLE`
const DISABLED: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The calling thread is not cancelled until this is dropped.
pub struct Uncancelled {
    /// What the thread had chosen.
    before: c_int,
}

impl Uncancelled {
    #[inline]
    pub fn begin() -> Uncancelled {
        let mut before = DISABLED;
        // SAFETY: `before` is valid for writing. The call fails only for an unknown state.
        unsafe { pthread_setcancelstate(DISABLED, &mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the C library takes no pointer here; glibc and musl accept null.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}
