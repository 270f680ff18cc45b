//! File systems that one test mounts for itself.

use std::ffi::CString;
use std::path::Path;

/// Mounts a file system of so many KiB at `folder`; see `mounted`.
pub fn small_disk(folder: &Path, kib: u64, work: impl FnOnce() + Send) -> bool {
    mounted("tmpfs", folder, &format!("size={kib}k"), work)
}

/// Mounts a file system of this kind at `folder`, and runs `work` while it is there. Only the calling thread and the
/// processes that it starts see it. Returns false, and runs nothing, if this process may not mount.
pub fn mounted(kind: &str, folder: &Path, options: &str, work: impl FnOnce() + Send) -> bool {
    let folder = folder.to_str().expect("a plain path");
    let [kind, target, options] = [kind, folder, options].map(|text| CString::new(text).expect("no NUL"));
    let mounted_and_run = || {
        let (none, nothing) = (c"none".as_ptr(), std::ptr::null());
        // SAFETY: the texts outlive the calls. The new mount namespace is that of this thread, and ends with it.
        let is_mounted = unsafe {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), std::ptr::null(), private, nothing) == 0
                && libc::mount(none, target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) == 0
        };
        if is_mounted {
            work();
        }
        is_mounted
    };
    let outcome = std::thread::scope(|scope| scope.spawn(mounted_and_run).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
