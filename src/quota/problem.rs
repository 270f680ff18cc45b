//! Why an account cannot be used.

use std::io;
use std::path::PathBuf;

use base::text::shown;

use super::account::{SEATS, VERSION};

#[derive(Debug, thiserror::Error)]
#[error("accounts {}: {why}", shown(path))]
pub struct AccountError {
    pub path: PathBuf,
    pub why: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it is gone")]
    Missing,
    #[error("the job closed a descriptor of the account")]
    Closed,
    /// The file is not one that this process would have made, so `open` replaces it.
    #[error("{0}")]
    Distrusted(Distrust),
    #[error("{0}, but running processes use it; end these processes, then remove it")]
    InUse(Distrust),
    #[error("{0}, and cannot be removed: {1}")]
    NotRemoved(Distrust, Errno),
    #[error("others replace or remove it all the time")]
    Contended,
    #[error("no regular file; remove it")]
    NotAFile,
    #[error("it belongs to user {0}; name another folder, or remove it")]
    OtherUser(u32),
    #[error("it has layout {0}, and this library layout {VERSION}: use one version of vramshim, or remove the file")]
    OtherLayout(u32),
    #[error("the limit of the size of files (ulimit -f) is too low for it")]
    FileSizeLimit,
    #[error("the folder cannot be made: {0}")]
    NoFolder(Errno),
    #[error("a process keeps the folder locked")]
    FolderLocked,
    #[error("its bytes cannot be locked: {0}; name a folder on a file system with locks")]
    NoLocks(Errno),
    #[error("the file was removed while this process uses it")]
    Gone,
    #[error("all {SEATS} seats are taken")]
    NoSeat,
    #[error("{0}")]
    System(Errno),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    #[error("it is a symbolic link")]
    Link,
    #[error("it is no regular file")]
    Kind,
    #[error("it has other names")]
    Names,
    #[error("it has the wrong size")]
    Size,
    #[error("others may read or write it")]
    Mode,
    #[error("it is no account")]
    NoAccount,
    #[error("it is the account of another device")]
    OtherDevice,
}

/// An errno value, which reads as the system's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", io::Error::from_raw_os_error(*.0))]
pub struct Errno(pub i32);

impl Problem {
    /// A system call on a descriptor of the account failed.
    pub(super) fn of_call(errno: i32) -> Problem {
        match errno {
            libc::EBADF => Problem::Closed,
            errno => Problem::System(Errno(errno)),
        }
    }

    /// The bytes of the file could not be locked.
    pub(super) fn of_lock(errno: i32) -> Problem {
        match Self::of_call(errno) {
            Problem::System(errno) => Problem::NoLocks(errno),
            closed => closed,
        }
    }
}

impl From<Distrust> for Problem {
    fn from(why: Distrust) -> Problem {
        Problem::Distrusted(why)
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EINVAL))
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::System(error.into())
    }
}
