//! System calls for a journal's file: create the file, lock it, and reserve address space to map it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use base::file::{open, page_down, resource_limit};
use base::identity;
use base::text::shown;

use crate::format::EXTENSION;

/// Why a journal cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {}", shown(path), io::Error::from_raw_os_error(*errno))]
pub struct CreateError {
    /// What failed, as a verb with its object.
    pub doing: &'static str,
    pub path: PathBuf,
    pub errno: i32,
}

impl CreateError {
    pub(crate) fn new(doing: &'static str, path: &Path, errno: Option<i32>) -> Self {
        Self {
            doing,
            path: path.to_owned(),
            errno: errno.unwrap_or(libc::EINVAL),
        }
    }
}

/// Creates a new file `<host>-<pid>-<start ticks>.vraj`. If the file exists, a number is added to the name: a program
/// that exec started has the pid and the start time of the program before it.
pub(crate) fn create_file(
    directory: &Path,
    host: &str,
    start_ticks: u64,
) -> Result<(PathBuf, libc::c_int), CreateError> {
    let host = identity::for_file_name(host);
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    let mut path = directory.to_owned();
    let failed = |path, errno| CreateError {
        doing: "create",
        path,
        errno,
    };
    for attempt in 0..10_000 {
        let name = match attempt {
            0 => format!("{host}-{pid}-{start_ticks}.{EXTENSION}"),
            n => format!("{host}-{pid}-{start_ticks}-{n}.{EXTENSION}"),
        };
        path = directory.join(name);
        let Ok(c_path) = CString::new(path.as_os_str().as_bytes()) else {
            break;
        };
        match open(&c_path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) {
            Ok(fd) => return Ok((path, fd)),
            Err(libc::EEXIST) => continue,
            Err(errno) => return Err(failed(path, errno)),
        }
    }
    Err(failed(path, libc::EEXIST))
}

/// Locks the file to show readers that its process runs. The kernel drops the lock when the process ends, however it
/// ends, and a forked child does not inherit the lock. An error is ignored: on a file system without locks, a reader
/// looks for the process instead.
pub(crate) fn lock_file(fd: libc::c_int) {
    // SAFETY: `flock` is plain data, valid if all zero.
    let mut whole_file: libc::flock = unsafe { std::mem::zeroed() };
    whole_file.l_type = libc::F_WRLCK as libc::c_short;
    whole_file.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: `whole_file` outlives the call.
    unsafe { libc::fcntl(fd, libc::F_SETLK, &whole_file) };
}

/// Reserves `wanted` bytes of address space. If that fails, reserves less, but at least `smallest` bytes. Returns the
/// address and the size.
pub(crate) fn reserve(wanted: usize, smallest: usize) -> Option<(*mut u8, usize)> {
    // If address space is limited (`ulimit -v`), most of it is left to the job.
    let mut size = wanted
        .min(page_down(resource_limit(libc::RLIMIT_AS) / 16))
        .max(smallest);
    loop {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the address, so no memory in use is replaced.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
        if base != libc::MAP_FAILED {
            return Some((base.cast(), size));
        }
        if size == smallest {
            return None;
        }
        size = page_down(size / 2).max(smallest);
    }
}
