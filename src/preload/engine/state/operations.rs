//! Whether copies and fills of the job concern the library.
//!
//! Jobs copy and fill far more often than they allocate, and nearly always the library has no part in it. So the hooks
//! of these functions read one variable, which is set once there is a reason to look: mapped memory in a process that
//! sees several devices, or a block whose synchronous operations must end before they return.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::next;

static WATCHED: AtomicBool = AtomicBool::new(false);

/// From now on the hooks of copies and fills enter the engine.
pub fn watch() {
    WATCHED.store(true, Ordering::Release);
}

/// The library has mapped memory that the job takes for the driver's. If there is more than one device, copies between
/// devices need the library from now on.
pub fn memory_is_mapped() {
    if next::device_count() > 1 {
        watch();
    }
}

#[inline]
pub fn are_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}
