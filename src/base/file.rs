//! Files of ours, as the kernel sees them: opened out of the way of the job, given blocks, told from every other file.
//!
//! Errors are errno values, as they come.

use std::ffi::CStr;
use std::io;

/// Descriptors below this are what programs expect to find free and close by number.
const FIRST_DESCRIPTOR: libc::c_int = 100;

/// What tells one file from every other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl FileId {
    pub fn of(fd: libc::c_int) -> Result<Self, i32> {
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

/// Opens without following a link, close-on-exec, and out of the way of small numbers.
pub fn open(path: &CStr, flags: libc::c_int) -> Result<libc::c_int, i32> {
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

/// Gives the file blocks for [offset, offset + length), or fails with an errno.
pub fn allocate(fd: libc::c_int, offset: usize, length: usize) -> Result<(), i32> {
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

pub fn file_size_limit() -> usize {
    resource_limit(libc::RLIMIT_FSIZE)
}

pub fn resource_limit(resource: libc::__rlimit_resource_t) -> usize {
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

pub fn page_down(bytes: usize) -> usize {
    bytes / page_size() * page_size()
}

pub fn page_up(bytes: usize) -> usize {
    bytes.div_ceil(page_size()) * page_size()
}

pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
