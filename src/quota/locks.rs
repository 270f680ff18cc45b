//! Locks on bytes of a file, and how a process keeps them.
//!
//! The kernel has two kinds, and they exclude each other. A lock of an *open file* belongs to what one `open` made, and lasts
//! as long as a descriptor or a mapping of it exists. A lock of the *process* is dropped when the process closes any
//! descriptor of the file, and is granted again to any thread of the process.

use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;

use base::descriptor::Descriptor;
use base::file::errno;

use super::problem::{Errno, Problem};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    OpenFile,
    Process,
}

impl Owner {
    /// Locks the bytes without waiting; false if another process has one of them. The error is an errno value: some file systems
    /// and sandboxes refuse locks.
    pub fn lock(self, fd: RawFd, bytes: Range<i64>) -> Result<bool, i32> {
        match self.set(fd, libc::F_WRLCK, bytes) {
            Ok(()) => Ok(true),
            Err(libc::EAGAIN | libc::EACCES) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    pub fn unlock(self, fd: RawFd, bytes: Range<i64>) {
        let _ = self.set(fd, libc::F_UNLCK, bytes);
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

/// Whether another open file or process has a lock on one of the bytes. The error is an errno value.
pub fn is_locked(fd: RawFd, bytes: Range<i64>) -> Result<bool, i32> {
    let mut description = description(libc::F_WRLCK, bytes);
    // SAFETY: the description is valid for writing.
    match unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut description) } {
        0 => Ok(description.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(errno()),
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

/// The seats of this process, in one account.
#[derive(Debug, Default)]
pub struct Own {
    pub seats: Vec<usize>,
    pub keeping: Option<Keeping>,
}

/// How this process keeps the locks on its seats.
#[derive(Debug)]
pub enum Keeping {
    Mapping,
    /// By this descriptor, which is never closed: closing any descriptor of the file would drop the locks.
    Descriptor(Descriptor),
}

/// An open file through which seats are looked at and locked.
pub struct Look<'a> {
    pub file: &'a Descriptor,
    pub owner: Owner,
}

impl Look<'_> {
    /// Locks the bytes. False if another process has one of them. The error is EBADF if the job closed the descriptor meanwhile.
    pub fn lock(&self, bytes: Range<i64>) -> Result<bool, i32> {
        let number = || self.file.number().ok_or(libc::EBADF);
        let is_locked = self.owner.lock(number()?, bytes);
        number().and(is_locked)
    }

    pub fn unlock(&self, bytes: Range<i64>) {
        if let Some(fd) = self.file.number() {
            self.owner.unlock(fd, bytes);
        }
    }
}

/// A page of an open file that is mapped, so that the open file and its locks stay after the descriptor is closed. The page
/// cannot be accessed, and a forked child does not have it.
pub struct Kept(*mut libc::c_void);

/// Maps a page of this open file.
pub fn keep(fd: RawFd) -> Result<Kept, Problem> {
    let why = || Problem::System(Errno(errno()));
    // SAFETY: the kernel chooses the address, so no memory in use is replaced.
    let page = unsafe { libc::mmap(ptr::null_mut(), 1, libc::PROT_NONE, libc::MAP_SHARED, fd, 0) };
    if page == libc::MAP_FAILED {
        return Err(why());
    }
    let kept = Kept(page);
    // SAFETY: the page was mapped above.
    match unsafe { libc::madvise(page, 1, libc::MADV_DONTFORK) } {
        0 => Ok(kept),
        _ => Err(why()),
    }
}

impl Kept {
    /// Keeps the page as long as the process lives.
    pub fn forever(self) {
        std::mem::forget(self);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: `keep` mapped the page, and nothing refers to it.
        unsafe { libc::munmap(self.0, 1) };
    }
}
