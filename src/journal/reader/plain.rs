//! Opens files that another user may have placed: plain files alone, and never a wait.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::format::EXTENSION;

/// Whether a file was opened here that not all users may read.
static IS_PRIVATE: AtomicBool = AtomicBool::new(false);

/// Opens a file for reading; `None` if it is no plain file. Does not wait.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    // The kind of the file is checked before the file is opened, because opening a device file can have effects.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    // If a FIFO has taken the file's place meanwhile, `O_NONBLOCK` keeps `open` from waiting for the FIFO's writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    noted(file)
}

/// Opens a file that lies beside a journal, whose name differs in its extension alone. `None` if it is no plain file but,
/// for example, a link. An error if another user than the journal's made the file, which is neither this one nor root.
pub(super) fn beside(path: &Path) -> io::Result<Option<File>> {
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !may_lie_beside(file.metadata()?.uid(), path) {
        return Err(io::Error::other(
            "another user than the journal's made it, so it is left out",
        ));
    }
    noted(file)
}

/// Whether a file of this user may belong to the journal beside `path`: the user is the journal's, this process's or root.
pub(crate) fn may_lie_beside(owner: u32, path: &Path) -> bool {
    // SAFETY: the call takes nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    let of_journal = || std::fs::metadata(path.with_extension(EXTENSION)).is_ok_and(|journal| journal.uid() == owner);
    owner == own || owner == 0 || of_journal()
}

/// Notes what others may do with a file that is read, and returns the file if it is plain.
fn noted(file: File) -> io::Result<Option<File>> {
    let found = file.metadata()?;
    if found.mode() & 0o004 == 0 {
        IS_PRIVATE.store(true, Relaxed);
    }
    Ok(found.is_file().then_some(file))
}

/// The bits of the mode that a file made from all files opened so far may have: if not all users may read each of them,
/// only this one gets the new file.
pub fn may_grant() -> u32 {
    if IS_PRIVATE.load(Relaxed) { 0o600 } else { 0o666 }
}
