//! Reads a shared account from outside: takes no seat and no lock, maps nothing, and writes nothing. So neither the members of
//! the account nor who reads it can hold up the other, and a file that is cut meanwhile is an error and no fault.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use base::identity;
use base::uuid::uuid_text;

use super::account::{Account, SEATS, used_in};
use super::file::{Head, Layout, MAGIC, VERSION, all_seats};
use super::locks;

/// What an account says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glimpse {
    pub uuid: [u8; 16],
    /// What all members hold: 0 if none runs. The bytes of a member that ended count until the next one looks for room.
    pub used: u64,
    /// The limit of the last process that joined as a member of the group; `None` without a limit.
    pub limit: Option<u64>,
}

/// Reads the account in this file. `None` if it is from before the machine started: nobody holds anything then.
pub fn glimpse(path: &Path) -> Result<Option<Glimpse>, String> {
    // With O_NONBLOCK a pipe of this name is opened at once, and is then refused.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() || found.size() != size_of::<Layout>() as u64 {
        return Err("it is no account".to_owned());
    }
    let mut head = [0; size_of::<Head>()];
    file.read_exact_at(&mut head, 0).map_err(|error| error.to_string())?;
    let part = |at: usize, length: usize| &head[at..at + length];
    let number = |at: usize| part(at, 4).try_into().map(u32::from_ne_bytes).unwrap_or(0);
    if part(offset_of!(Head, magic), 8) != MAGIC {
        return Err("it is no account".to_owned());
    }
    if number(offset_of!(Head, version)) != VERSION || number(offset_of!(Head, seats)) != SEATS as u32 {
        return Err("it is of another version".to_owned());
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(part(offset_of!(Head, uuid), 16));
    if path.file_stem().and_then(|stem| stem.to_str()) != Some(&uuid_text(uuid)) {
        return Err("it is the account of another device".to_owned());
    }
    if part(offset_of!(Head, boot_id), 16) != identity::boot_id() {
        return Ok(None);
    }
    let account = offset_of!(Layout, account);
    let read = |offset: usize| steady(&file, (account + offset) as u64).map_err(|error| error.to_string());
    let limit = read(offset_of!(Account, limit))?;
    Ok(Some(Glimpse {
        uuid,
        // If the file system does not tell, the account counts as used.
        used: match locks::is_locked(file.as_raw_fd(), all_seats()).unwrap_or(true) {
            true => used_in(read(Account::WORD)?),
            false => 0,
        },
        limit: (limit > 0).then_some(limit),
    }))
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
