//! The file under a journal, as the kernel sees it: making it, locking it, giving it blocks, finding room to map it.
//!
//! Errors are errno values, as they come.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use super::format::EXTENSION;
use super::identity;

/// Descriptors below this are what programs expect to find free and close by number.
const FIRST_DESCRIPTOR: libc::c_int = 100;

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
    pub(super) fn new(doing: &'static str, path: &Path, errno: Option<i32>) -> Self {
        Self {
            doing,
            path: path.to_owned(),
            errno: errno.unwrap_or(libc::EINVAL),
        }
    }
}

/// What tells one file from every other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl FileId {
    pub(super) fn of(fd: libc::c_int) -> Result<Self, i32> {
        // SAFETY: stat is plain data that fstat fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writing; a bad descriptor is an error, not a fault.
        match unsafe { libc::fstat(fd, &mut stat) } {
            0 => Ok(Self {
                device: stat.st_dev,
                inode: stat.st_ino,
            }),
            _ => Err(errno()),
        }
    }
}

/// A new file that nobody else has. An exec'ed program keeps pid and start time, so its file gets a number behind.
pub(super) fn create_file(
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

/// Opens without following a link, close-on-exec, and out of the way of small numbers.
pub(crate) fn open(path: &CStr, flags: libc::c_int) -> Result<libc::c_int, i32> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mode: libc::c_uint = 0o600;
    // SAFETY: `path` is NUL-terminated; the rest are numbers.
    let fd = unsafe { libc::open(path.as_ptr(), flags, mode) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: both descriptors are ours; the lower one is closed before any lock is taken, since closing drops locks.
    unsafe {
        let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
        if high < 0 {
            return Ok(fd);
        }
        libc::close(fd);
        Ok(high)
    }
}

/// Marks the file as being written: the lock goes with the process, however it ends, and is not inherited by fork.
/// Where locks do not work the journal still does; only "running" cannot be told from "killed".
pub(super) fn lock(fd: libc::c_int) {
    // SAFETY: flock is plain data.
    let mut whole_file: libc::flock = unsafe { std::mem::zeroed() };
    whole_file.l_type = libc::F_WRLCK as libc::c_short;
    whole_file.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the struct outlives the call.
    unsafe { libc::fcntl(fd, libc::F_SETLK, &whole_file) };
}

/// Address space for the largest file, or as much of it as can be had.
pub(super) fn reserve(wanted: usize, smallest: usize) -> Option<(*mut u8, usize)> {
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

/// Gives the file blocks for [offset, offset + length), or fails with an errno.
pub(crate) fn allocate(fd: libc::c_int, offset: usize, length: usize) -> Result<(), i32> {
    // SAFETY: numbers only.
    if unsafe { libc::fallocate(fd, 0, offset as libc::off_t, length as libc::off_t) } == 0 {
        return Ok(());
    }
    match errno() {
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL => write_zeros(fd, offset, length),
        errno => Err(errno),
    }
}

/// For filesystems that know no fallocate.
fn write_zeros(fd: libc::c_int, offset: usize, length: usize) -> Result<(), i32> {
    static ZEROS: [u8; 16384] = [0; 16384];
    let mut done = 0;
    while done < length {
        let count = ZEROS.len().min(length - done);
        // SAFETY: `count` bytes of ZEROS are readable.
        let written = unsafe { libc::pwrite(fd, ZEROS.as_ptr().cast(), count, (offset + done) as libc::off_t) };
        match written {
            1.. => done += written as usize,
            0 => return Err(libc::ENOSPC),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
    Ok(())
}

pub(super) fn file_size_limit() -> usize {
    resource_limit(libc::RLIMIT_FSIZE)
}

fn resource_limit(resource: libc::__rlimit_resource_t) -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(resource, &mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
        .unwrap_or(4096)
        .max(4096)
}

pub(super) fn page_down(bytes: usize) -> usize {
    bytes / page_size() * page_size()
}

pub(super) fn page_up(bytes: usize) -> usize {
    bytes.div_ceil(page_size()) * page_size()
}

pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
