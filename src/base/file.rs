//! System calls for the files that the library keeps open in a job: to open a file with a high descriptor number, to
//! allocate its blocks on disk, and to identify it. Errors are errno values.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::signals::without_signals_of_writes;

/// The lowest number that the library asks for when it opens a file. Programs expect lower numbers to be free, and some
/// programs close lower descriptors by number.
const FIRST_DESCRIPTOR: libc::c_int = 100;

/// The identity of a file. It shows whether a descriptor number still stands for the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: libc::dev_t,
    pub(crate) inode: libc::ino_t,
}

impl FileId {
    pub fn of(fd: libc::c_int) -> Result<Self, i32> {
        status(fd).map(|stat| Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

/// What fstat(2) says of an open file.
pub fn status(fd: libc::c_int) -> Result<libc::stat, i32> {
    // SAFETY: `stat` is plain data, valid if all zero.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing; a bad descriptor is an error, not a fault.
    match unsafe { libc::fstat(fd, &mut stat) } {
        0 => Ok(stat),
        _ => Err(errno()),
    }
}

impl From<&std::fs::Metadata> for FileId {
    fn from(file: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self {
            device: file.dev() as libc::dev_t,
            inode: file.ino() as libc::ino_t,
        }
    }
}

/// A path as the C library takes it.
pub fn c_path(path: &Path) -> Result<CString, i32> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)
}

/// Opens a file, close-on-exec. The descriptor is at least `FIRST_DESCRIPTOR`, unless the process may not have such a
/// number. Fails if `path` is a symbolic link. A created file has mode 0600.
pub fn open(path: &CStr, flags: libc::c_int) -> Result<libc::c_int, i32> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mode: libc::c_uint = 0o600;
    // SAFETY: `path` is NUL-terminated; the other arguments are numbers.
    let fd = unsafe { libc::open(path.as_ptr(), flags, mode) };
    if fd < 0 {
        return Err(errno());
    }
    Ok(out_of_the_way(fd))
}

/// Moves a new descriptor to a number that is at least `FIRST_DESCRIPTOR`, unless the process may not have such a number.
pub(crate) fn out_of_the_way(fd: libc::c_int) -> libc::c_int {
    // SAFETY: the caller made `fd` and hands it over. It is closed before the caller can lock the file: closing any
    // descriptor of a file drops the process's record locks on the file.
    unsafe {
        let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
        if high < 0 {
            return fd;
        }
        libc::close(fd);
        high
    }
}

/// Allocates blocks on disk for the bytes [offset, offset + length) of the file. No signal reaches the job.
pub fn allocate(fd: libc::c_int, offset: usize, length: usize) -> Result<(), i32> {
    without_signals_of_writes(|| match fill_holes(fd, offset, length)? {
        true => Ok(()),
        false => write_zeros(fd, offset, length),
    })
}

/// Allocates blocks for the bytes that have none; the others stay as they are. False if the file system has no such call.
pub fn fill_holes(fd: libc::c_int, offset: usize, length: usize) -> Result<bool, i32> {
    // SAFETY: fallocate takes numbers only.
    if unsafe { libc::fallocate(fd, 0, offset as libc::off_t, length as libc::off_t) } == 0 {
        return Ok(true);
    }
    match errno() {
        libc::EINTR => fill_holes(fd, offset, length),
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL => Ok(false),
        errno => Err(errno),
    }
}

/// The names in a folder, without those of the folder itself and the one above it; none if it cannot be read. The
/// function of std ends the process if the job has closed the descriptor meanwhile.
pub fn names_in(folder: &Path) -> Vec<OsString> {
    let mut names = Vec::new();
    let Ok(path) = c_path(folder) else {
        return names;
    };
    // SAFETY: the path is a C string.
    let stream = unsafe { libc::opendir(path.as_ptr()) };
    if stream.is_null() {
        return names;
    }
    // SAFETY: the stream is open, and an entry is valid until the next call.
    while let Some(entry) = unsafe { libc::readdir(stream).as_ref() } {
        // SAFETY: the name ends with a NUL.
        let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    // SAFETY: the stream was opened above, and is not used again.
    unsafe { libc::closedir(stream) };
    names
}

/// Allocates blocks on a file system without fallocate, by writing zeros.
fn write_zeros(fd: libc::c_int, offset: usize, length: usize) -> Result<(), i32> {
    static ZEROS: [u8; 16384] = [0; 16384];
    let last = offset + length;
    for start in (offset..last).step_by(ZEROS.len()) {
        let end = last.min(start + ZEROS.len());
        write_all(&mut &ZEROS[..end - start], |left| {
            let at = (end - left.len()) as libc::off_t;
            // SAFETY: the bytes are readable.
            unsafe { libc::pwrite(fd, left.as_ptr().cast(), left.len(), at) }
        })?;
    }
    Ok(())
}

/// Writes all of `bytes` by a system call that may write fewer, or that a signal may interrupt. Of `bytes` is left what
/// could not be written.
pub fn write_all(bytes: &mut &[u8], mut write: impl FnMut(&[u8]) -> libc::ssize_t) -> Result<(), i32> {
    while !bytes.is_empty() {
        match write(bytes) {
            written @ 1.. => *bytes = &bytes[(written as usize).min(bytes.len())..],
            0 => return Err(libc::ENOSPC),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
    Ok(())
}

/// The largest size that a file of this process may grow to (`RLIMIT_FSIZE`).
pub fn file_size_limit() -> usize {
    resource_limit(libc::RLIMIT_FSIZE)
}

/// The soft limit of a resource; `usize::MAX` if there is none.
pub fn resource_limit(resource: libc::__rlimit_resource_t) -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(resource, &mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// The size of a page of memory, in bytes.
pub fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
        .unwrap_or(4096)
        .max(4096)
}

pub fn page_down(bytes: usize) -> usize {
    bytes / page_size() * page_size()
}

pub fn page_up(bytes: usize) -> usize {
    bytes.div_ceil(page_size()) * page_size()
}

/// The error of the last system call of this thread.
pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
