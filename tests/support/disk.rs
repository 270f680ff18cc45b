//! A small disk.

use std::ffi::CString;
use std::path::Path;

/// Mounts a file system of so many KiB at `folder`, and runs `work` while it is there. Only the calling thread and the
/// processes that it starts see it. Returns false, and runs nothing, if this process may not mount.
pub fn small_disk(folder: &Path, kib: u64, work: impl FnOnce() + Send) -> bool {
    let target = CString::new(folder.to_str().expect("a plain path")).expect("no NUL");
    let size = CString::new(format!("size={kib}k")).expect("no NUL");
    let mounted_and_run = || {
        // SAFETY: the texts outlive the calls. The new mount namespace is that of this thread, and ends with it.
        let is_mounted = unsafe {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    private,
                    std::ptr::null(),
                ) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    target.as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    size.as_ptr().cast(),
                ) == 0
        };
        if is_mounted {
            work();
        }
        is_mounted
    };
    let outcome = std::thread::scope(|scope| scope.spawn(mounted_and_run).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
