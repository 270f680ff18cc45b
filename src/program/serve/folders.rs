//! The journals in a folder, before any of them is opened.

use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use journal::format::EXTENSION;
use journal::reader::plain;

/// The seconds and nanoseconds of a file's last change, and its size.
pub type Signs = (i64, i64, u64);

/// What shows that a file changed, so that a new look at it is worth something. The file is not opened.
pub fn signs(path: &Path) -> Signs {
    std::fs::symlink_metadata(path).map_or((0, 0, 0), |found| (found.ctime(), found.ctime_nsec(), found.len()))
}

/// The journals of a folder with their inodes.
pub fn journals_in(folder: &Path) -> io::Result<impl Iterator<Item = (PathBuf, u64)>> {
    let journals = plain::named_in(folder, EXTENSION)?;
    Ok(journals.map(|entry| (entry.path(), entry.ino())))
}
