//! The file under a journal, as the kernel sees it: making it, locking it, giving it blocks, finding room to map it.
//!
//! Errors are errno values, as they come.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use base::file::{open, page_down, resource_limit};
use base::identity;

use crate::format::EXTENSION;

/// Why there is no journal.
#[derive(Debug)]
pub struct CreateError {
    pub doing: &'static str,
    pub path: PathBuf,
    pub errno: i32,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let reason = io::Error::from_raw_os_error(self.errno);
        write!(f, "cannot {} {}: {reason}", self.doing, self.path.display())
    }
}

impl std::error::Error for CreateError {}

impl CreateError {
    pub(crate) fn new(doing: &'static str, path: &Path, errno: Option<i32>) -> Self {
        Self {
            doing,
            path: path.to_owned(),
            errno: errno.unwrap_or(libc::EINVAL),
        }
    }
}

/// A new file that nobody else has. An exec'ed program keeps pid and start time, so its file gets a number behind.
pub(crate) fn create_file(
    directory: &Path,
    host: &str,
    start_ticks: u64,
) -> Result<(PathBuf, libc::c_int), CreateError> {
    let host = identity::for_file_name(host);
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    let mut path = directory.to_owned();
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
            Err(errno) => {
                return Err(CreateError {
                    doing: "create",
                    path,
                    errno,
                });
            }
        }
    }
    Err(CreateError {
        doing: "create",
        path,
        errno: libc::EEXIST,
    })
}

/// Marks the file as being written: the lock goes with the process, however it ends, and is not inherited by fork.
/// Where locks do not work the journal still does; only "running" cannot be told from "killed".
pub(crate) fn lock(fd: libc::c_int) {
    // SAFETY: flock is plain data.
    let mut whole_file: libc::flock = unsafe { std::mem::zeroed() };
    whole_file.l_type = libc::F_WRLCK as libc::c_short;
    whole_file.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the struct outlives the call.
    unsafe { libc::fcntl(fd, libc::F_SETLK, &whole_file) };
}

/// Address space for the largest file, or as much of it as can be had.
pub(crate) fn reserve(wanted: usize, smallest: usize) -> Option<(*mut u8, usize)> {
    // A job under `ulimit -v` needs its address space for itself.
    let mut size = wanted
        .min(page_down(resource_limit(libc::RLIMIT_AS) / 16))
        .max(smallest);
    loop {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping wherever the kernel likes.
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
