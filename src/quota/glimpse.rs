//! Reads a shared account from outside: takes no seat and no lock, maps nothing, and writes nothing. So neither the members of
//! the account nor who reads it can hold up the other, and a file that is cut meanwhile is an error and no fault.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use base::locks::Owner;

use super::account::{Account, used_in};
use super::file::{Head, Layout, all_seats, uuid_in_name};
use super::problem::{Distrust, Problem};

/// What an account says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glimpse {
    pub uuid: [u8; 16],
    /// What all members hold: 0 if none runs. The bytes of a member that ended count until the next one looks for room.
    pub used: u64,
    /// The limit of the last process that joined as a member of the group; `None` without a limit.
    pub limit: Option<u64>,
}

pub fn glimpse(path: &Path) -> Result<Glimpse, Problem> {
    let uuid = uuid_in_name(path).ok_or(Distrust::OtherDevice)?;
    // With O_NONBLOCK a pipe of this name is opened at once, and is then refused.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Distrust::Kind.into());
    }
    if found.size() != size_of::<Layout>() as u64 {
        return Err(Distrust::Size.into());
    }
    let mut head = [0; size_of::<Head>()];
    file.read_exact_at(&mut head, 0)?;
    Head::check(head, uuid)?;
    let (account, fd) = (offset_of!(Layout, account), file.as_raw_fd());
    let read = |offset: usize| steady(&file, (account + offset) as u64);
    let limit = read(offset_of!(Account, limit))?;
    Ok(Glimpse {
        uuid,
        // If the file system does not tell, the account counts as used.
        used: if Owner::of(fd).finds_locked(fd, all_seats()).unwrap_or(true) {
            used_in(read(Account::WORD)?)
        } else {
            0
        },
        limit: (limit > 0).then_some(limit),
    })
}

/// Reads a number that others may change meanwhile. The kernel does not promise to copy its bytes at once, so it is read until
/// it is the same twice.
fn steady(file: &File, offset: u64) -> io::Result<u64> {
    let read = || -> io::Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let mut value = read()?;
    // Members that allocate all the time must not hold this up.
    for _ in 0..8 {
        let again = read()?;
        if again == value {
            break;
        }
        value = again;
    }
    Ok(value)
}
