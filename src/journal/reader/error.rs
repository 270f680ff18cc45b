//! Why a file cannot be read as a journal. The messages tell the user what to do.

use std::io;
use std::path::PathBuf;

use base::text::shown;

use crate::format::{EXTENSION, HEADER_SIZE, VERSION};

#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", shown(path))]
pub struct OpenError {
    pub path: PathBuf,
    #[source]
    pub problem: Problem,
}

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("cannot be read: {0}")]
    Io(#[source] io::Error),
    #[error("not a file: give a .{EXTENSION} file or a folder of them")]
    NotAFile,
    #[error("not a vramshim journal: give a .{EXTENSION} file")]
    NotAJournal,
    #[error("a journal of an older, unreleased build: record it again")]
    Unreleased,
    #[error(
        "written in journal format {0}, this program reads format {VERSION}: use the vramshim that goes with the library \
         that wrote it"
    )]
    OtherVersion(u32),
    /// The version is known, but the sizes in the header are not those of this version.
    #[error("header is damaged (impossible sizes): copy the file again")]
    OtherLayout,
    /// The file begins as a journal does, but its size, which is given here, is less than a header's.
    #[error("cut short ({0} bytes, the header alone has {HEADER_SIZE}): copy the file again")]
    Short(u64),
    /// The header is not complete: the process is just starting, or was killed while it wrote the header.
    #[error("no header yet: its process is just starting, or ended before it began")]
    NotReady,
}
