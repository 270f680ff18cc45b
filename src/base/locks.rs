//! Locks on bytes of a file.
//!
//! The kernel has two kinds, and they exclude each other. A lock of an *open file* belongs to what one `open` made, and lasts
//! as long as a descriptor or a mapping of it exists. A lock of the *process* is dropped when the process closes any
//! descriptor of the file, and is granted again to any thread of the process.

use std::ops::Range;
use std::os::fd::RawFd;

use crate::file::errno;

/// All bytes of a file.
pub const WHOLE: Range<i64> = 0..0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    OpenFile,
    Process,
}

impl Owner {
    /// An owner that can lock bytes of this file: some systems (gVisor) know no locks of open files.
    pub fn of(fd: RawFd) -> Owner {
        match Owner::OpenFile.finds_locked(fd, 0..1) {
            Err(errno) if errno != libc::EBADF => Owner::Process,
            _ => Owner::OpenFile,
        }
    }

    /// Locks the bytes without waiting; false if another process has one of them. The error is an errno value: some file systems
    /// and sandboxes refuse locks.
    pub fn lock(self, fd: RawFd, bytes: Range<i64>) -> Result<bool, i32> {
        match self.set(fd, libc::F_WRLCK, bytes) {
            Ok(()) => Ok(true),
            Err(libc::EAGAIN | libc::EACCES) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Locks the bytes without waiting, together with all others that `share` them. Fails while another has locked them alone.
    pub fn share(self, fd: RawFd, bytes: Range<i64>) -> Result<(), i32> {
        self.set(fd, libc::F_RDLCK, bytes)
    }

    pub fn unlock(self, fd: RawFd, bytes: Range<i64>) {
        let _ = self.set(fd, libc::F_UNLCK, bytes);
    }

    /// Whether another than this owner has a lock on one of the bytes: another process, or another open file, such as any
    /// of this process if this is a new one. The error is an errno value.
    pub fn finds_locked(self, fd: RawFd, bytes: Range<i64>) -> Result<bool, i32> {
        let command = match self {
            Owner::OpenFile => libc::F_OFD_GETLK,
            Owner::Process => libc::F_GETLK,
        };
        let mut description = description(libc::F_WRLCK, bytes);
        // SAFETY: the description is valid for writing.
        match unsafe { libc::fcntl(fd, command, &mut description) } {
            0 => Ok(description.l_type != libc::F_UNLCK as libc::c_short),
            _ => Err(errno()),
        }
    }

    fn set(self, fd: RawFd, kind: libc::c_int, bytes: Range<i64>) -> Result<(), i32> {
        let command = match self {
            Owner::OpenFile => libc::F_OFD_SETLK,
            Owner::Process => libc::F_SETLK,
        };
        // SAFETY: the description outlives the call. A descriptor that is not open is an error, not a fault.
        match unsafe { libc::fcntl(fd, command, &description(kind, bytes)) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }
}

fn description(kind: libc::c_int, bytes: Range<i64>) -> libc::flock {
    // SAFETY: `flock` is plain data, valid if all zero.
    let mut description: libc::flock = unsafe { std::mem::zeroed() };
    description.l_type = kind as libc::c_short;
    description.l_whence = libc::SEEK_SET as libc::c_short;
    description.l_start = bytes.start;
    description.l_len = bytes.end - bytes.start;
    description
}
