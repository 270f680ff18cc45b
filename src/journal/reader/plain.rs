//! Opens files that another user may have placed: plain files alone, and never a wait.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::lines::NotBeside;
use crate::format::EXTENSION;

/// What each file that was opened here grants, in bits of a mode. The group is that of this process.
static GRANTED: AtomicU32 = AtomicU32::new(0o666);

/// Opens a file for reading; `None` if it is no plain file. Does not wait.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    // The kind of the file is checked before the file is opened, because opening a device file can have effects.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    // If a FIFO has taken the file's place meanwhile, `O_NONBLOCK` keeps `open` from waiting for the FIFO's writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    GRANTED.fetch_and(granted_by(&found), Relaxed);
    Ok(found.is_file().then_some(file))
}

/// Opens a file that lies beside a journal, whose name differs in its extension alone. `None` if it is no plain file but,
/// for example, a link. The error is `NotBeside::OtherOwner` if the journal's user did not make the file.
pub(super) fn beside(path: &Path) -> io::Result<Option<File>> {
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !may_lie_beside(found.uid(), path) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, NotBeside::OtherOwner));
    }
    GRANTED.fetch_and(granted_by(&found), Relaxed);
    Ok(found.is_file().then_some(file))
}

/// Whether a file of this user may belong to the journal beside `path`: the user is the journal's, this process's or root.
pub(crate) fn may_lie_beside(owner: u32, path: &Path) -> bool {
    // SAFETY: the call takes nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    let of_journal = || std::fs::metadata(path.with_extension(EXTENSION)).is_ok_and(|journal| journal.uid() == owner);
    owner == own || owner == 0 || of_journal()
}

fn granted_by(file: &Metadata) -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    let group = unsafe { libc::getegid() };
    if file.gid() == group {
        file.mode()
    } else {
        without_group(file.mode())
    }
}

/// A mode that grants the group what it grants all others.
fn without_group(mode: u32) -> u32 {
    mode & !0o070 | (mode & 0o007) << 3
}

/// What a file that is made from all files opened so far may grant, in bits of a mode: what each of them grants, and
/// reading and writing to its user. `made` is the new file.
pub fn may_grant(made: &Metadata) -> u32 {
    let mode = GRANTED.load(Relaxed) | 0o600;
    // SAFETY: the call takes nothing and cannot fail.
    if made.gid() == unsafe { libc::getegid() } {
        mode
    } else {
        without_group(mode)
    }
}
