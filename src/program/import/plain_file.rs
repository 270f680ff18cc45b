//! Opens files that a command reads: plain files alone, never with a wait, and no more of them than was there at the start.

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read, Take};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// A file of this size is read whatever it is.
const FEW_BYTES: u64 = 16 << 20;
/// Nothing that is worth reading is compressed more than this many times. A file that takes less of the disk is made of
/// holes, and reading it takes memory for nothing.
pub const MOST_COMPRESSED: u64 = 64;

/// The most bytes that so many compressed bytes may stand for.
pub fn most_expanded(bytes: u64) -> u64 {
    bytes.saturating_mul(MOST_COMPRESSED).max(FEW_BYTES)
}

/// What a path leads to that is no plain file, and what to do.
fn other(kind: FileType) -> &'static str {
    const COPY: &str = "is no plain file but a pipe, which can be read only once: write what comes from it into a file, and \
                        give that file";
    if kind.is_dir() {
        "is a folder: give one file of it"
    } else if kind.is_fifo() {
        COPY
    } else if kind.is_socket() {
        "is a socket: give a file"
    } else {
        "is a device: give a file"
    }
}

/// What is wrong with a file or with what is in it, in words.
pub type Wrong = String;

impl From<Unreadable> for Wrong {
    fn from(problem: Unreadable) -> Wrong {
        problem.to_string()
    }
}

/// Why a file cannot be read. The text has neither the file's name nor a line feed.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    NoPlainFile(&'static str),
    #[error("cannot be read: hardly any of it was ever written: copy it again")]
    Holes,
    #[error("cannot be read: {} are more than the memory that is left", base::units::size(*.0))]
    TooLong(u64),
}

/// Opens a file. A file that another program makes longer is read up to the size that it has now, so that reading ends.
pub fn open(path: &Path) -> Result<Take<File>, Unreadable> {
    let Some(file) = journal::reader::plain::open(path)? else {
        return Err(Unreadable::NoPlainFile(other(path.metadata()?.file_type())));
    };
    let size = file.metadata()?.len();
    Ok(file.take(size))
}

/// Whether hardly any byte of a file is stored, so that to read it would take hours for nothing.
fn is_of_holes(file: &File) -> bool {
    let stored = |found: &Metadata| found.blocks().saturating_mul(512);
    file.metadata()
        .is_ok_and(|found| found.len() > most_expanded(stored(&found)))
}

pub fn read(path: &Path) -> Result<Vec<u8>, Unreadable> {
    let mut file = open(path)?;
    if is_of_holes(file.get_ref()) {
        return Err(Unreadable::Holes);
    }
    let size = usize::try_from(file.limit()).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    // A file's size may be a lie: one of holes is longer than all memory.
    let reserved = bytes.try_reserve_exact(size);
    reserved.map_err(|_| Unreadable::TooLong(file.limit()))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_grows_is_read_up_to_its_size() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"before").unwrap();
        let mut opened = open(file.path()).unwrap();
        file.write_all(b" after").unwrap();
        let mut text = String::new();
        opened.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before");
        assert_eq!(read(file.path()).unwrap(), b"before after");
    }
}
