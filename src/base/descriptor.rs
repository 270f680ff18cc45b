//! Descriptors that the library opens in the job's process.
//!
//! A descriptor is a number that the job may close, and may then get for a file of its own. So each descriptor is kept with
//! the identity of its file, and is compared with it before each use and before it is closed.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use crate::file::{self, FileId};

/// A descriptor of this library, close-on-exec, at a number that programs do not expect. Dropping it closes it, unless the
/// job closed it before.
#[derive(Debug)]
pub struct Descriptor {
    number: RawFd,
    /// The file that was opened.
    pub file: FileId,
}

impl Descriptor {
    /// Opens a file as `file::open` does. The error is an errno value.
    pub fn open(path: &Path, flags: libc::c_int) -> Result<Descriptor, i32> {
        let number = file::open(&file::c_path(path)?, flags)?;
        FileId::of(number).map(|file| Descriptor { number, file })
    }

    /// Takes over a descriptor that a system call just made.
    pub fn from_new(made: OwnedFd) -> Result<Descriptor, i32> {
        let number = file::out_of_the_way(made.into_raw_fd());
        FileId::of(number).map(|file| Descriptor { number, file })
    }

    /// The descriptor that a system call made, from what the call returned: a negative number is an error, which errno has.
    ///
    /// # Safety
    /// A system call that makes a descriptor has just returned `code`, and nothing else owns the descriptor.
    pub unsafe fn made(code: libc::c_int) -> io::Result<Descriptor> {
        let new = result(code)?;
        // SAFETY: by contract the descriptor is open, and belongs to nothing else.
        Descriptor::from_new(unsafe { OwnedFd::from_raw_fd(new) }).map_err(io::Error::from_raw_os_error)
    }

    /// The number, if it still stands for the file. Another thread of the job may close it at any moment after this.
    pub fn number(&self) -> Option<RawFd> {
        (FileId::of(self.number) == Ok(self.file)).then_some(self.number)
    }

    /// The same; EBADF, which is the error of a descriptor that is not open, if the job closed it.
    pub fn open_number(&self) -> io::Result<RawFd> {
        self.number().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    pub fn close(&mut self) {
        let file = self.file;
        drop(std::mem::replace(self, Descriptor { number: -1, file }));
    }
}

/// What a system call returned: a negative number is an error, which errno has.
pub fn result(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(code)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(number) = self.number() {
            // SAFETY: the number stands for the file that this value opened, and nobody else has the value.
            unsafe { libc::close(number) };
        }
    }
}

/// A descriptor that a forked child must not keep, such as a socket whose peers would wait for the child.
pub struct Inherited {
    /// -1 for none.
    number: AtomicI32,
    inode: AtomicU64,
}

impl Inherited {
    pub const fn none() -> Inherited {
        Inherited {
            number: AtomicI32::new(-1),
            inode: AtomicU64::new(0),
        }
    }

    /// The children of this process close the descriptor.
    pub fn holds(&self, descriptor: &Descriptor) {
        self.inode.store(descriptor.file.inode, SeqCst);
        self.number.store(descriptor.number, SeqCst);
    }

    /// Closes it, in the child. This calls only functions that are safe in a signal handler.
    pub fn close(&self) {
        let number = self.number.swap(-1, SeqCst);
        // The job may have closed it, and may use its number for something else.
        if number >= 0 && FileId::of(number).is_ok_and(|file| file.inode == self.inode.load(SeqCst)) {
            // SAFETY: the number stands for the file that the library opened, and the child has no thread that uses it.
            unsafe { libc::close(number) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_the_job_uses_for_another_file_is_neither_used_nor_closed() {
        let descriptor = Descriptor::open(Path::new("/dev/null"), libc::O_RDWR).unwrap();
        let number = descriptor.number().unwrap();
        assert!(number >= 100, "{number}");
        // SAFETY: the number is that of the descriptor above, and `dup2` gives it to another file.
        unsafe {
            let other = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
            assert_eq!(libc::dup2(other, number), number);
            libc::close(other);
        }
        assert_eq!(descriptor.number(), None);
        drop(descriptor);
        assert!(FileId::of(number).is_ok(), "the job's file was closed");
        // SAFETY: the number is the one that `dup2` gave out above.
        unsafe { libc::close(number) };
    }
}
