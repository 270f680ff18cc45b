//! System calls for a journal's file: create the file, lock it, and reserve address space to map it.

use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use base::file::{FileId, c_path, open, page_down, resource_limit};
use base::identity;
use base::locks::{Owner, WHOLE};
use base::text::shown;

use crate::format::EXTENSION;

#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {}", shown(path), io::Error::from_raw_os_error(*errno))]
pub struct CreateError {
    /// What failed, as a verb with its object.
    pub doing: &'static str,
    pub path: PathBuf,
    pub errno: i32,
}

/// Creates a new file `<host>-<pid>-<start ticks>.vraj`. If the file exists, a number is added to the name: a program
/// that exec started has the pid and the start time of the program before it.
pub(crate) fn create_file(
    directory: &Path,
    host: &str,
    start_ticks: u64,
) -> Result<(PathBuf, libc::c_int), CreateError> {
    let host = identity::for_file_name(host);
    let pid = std::process::id();
    let names = (0..10_000).map(|attempt| match attempt {
        0 => format!("{host}-{pid}-{start_ticks}.{EXTENSION}"),
        n => format!("{host}-{pid}-{start_ticks}-{n}.{EXTENSION}"),
    });
    let mut path = directory.to_owned();
    let mut errno = libc::EEXIST;
    for name in names {
        path = directory.join(name);
        match c_path(&path).and_then(|name| open(&name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)) {
            Ok(fd) => return Ok((path, fd)),
            Err(libc::EEXIST) => {}
            Err(other) => {
                errno = other;
                break;
            }
        }
    }
    let doing = "create";
    Err(CreateError { doing, path, errno })
}

/// Locks the file to show readers that its process runs. The kernel drops the lock when the process ends, however it
/// ends, and a forked child does not inherit the lock. An error is ignored: on a file system without locks, a reader
/// looks for the process instead.
pub(crate) fn lock_file(fd: libc::c_int) {
    let _ = Owner::Process.lock(fd, WHOLE);
}

/// A file of this process that stays open, although the job may close any descriptor.
pub(crate) struct KeptFile {
    pub(crate) path: PathBuf,
    pub(crate) file: FileId,
    /// The job may have closed it.
    fd: AtomicI32,
}

impl KeptFile {
    pub(crate) fn new(path: PathBuf, fd: libc::c_int) -> Result<KeptFile, i32> {
        Ok(KeptFile {
            path,
            file: FileId::of(fd)?,
            fd: AtomicI32::new(fd),
        })
    }

    /// The descriptor as it was last known. The job may have closed it.
    pub(crate) fn last_known(&self) -> libc::c_int {
        self.fd.load(Relaxed)
    }

    /// The descriptor. If the job has closed it, or another file has the number now, the file is opened again with these
    /// flags, and is handed to `opened`.
    pub(crate) fn descriptor(&self, flags: libc::c_int, opened: impl FnOnce(libc::c_int)) -> Result<libc::c_int, i32> {
        let fd = self.last_known();
        if FileId::of(fd) == Ok(self.file) {
            return Ok(fd);
        }
        let fd = open(&c_path(&self.path)?, flags)?;
        if FileId::of(fd) != Ok(self.file) {
            // SAFETY: the descriptor was opened above and is used nowhere else.
            unsafe { libc::close(fd) };
            return Err(libc::ESTALE);
        }
        opened(fd);
        self.fd.store(fd, Relaxed);
        Ok(fd)
    }
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
