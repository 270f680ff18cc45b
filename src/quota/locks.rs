//! How a process keeps its locks on bytes of an account's file (`base::locks`).

use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;

use base::descriptor::Descriptor;
use base::file::errno;
use base::locks::Owner;

use super::problem::{Errno, Problem};

/// The seats of this process, in one account.
#[derive(Debug)]
pub struct Own {
    pub seats: Vec<usize>,
    /// Through this file seats are looked at. It is never closed: if the process owns the locks, closing any descriptor of
    /// the file drops them.
    pub look: Look,
}

/// An open file through which seats are looked at and locked, and who owns the locks on the seats: open files that mappings
/// keep, or this process.
#[derive(Debug)]
pub struct Look {
    pub file: Descriptor,
    pub owner: Owner,
}

impl Look {
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

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: `keep` mapped the page, and nothing refers to it.
        unsafe { libc::munmap(self.0, 1) };
    }
}
