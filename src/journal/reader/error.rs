//! Why a file cannot be read as a journal. The messages tell the user what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use base::text::shown;

use crate::format::{self, HEADER_SIZE, OLDEST_VERSION, VERSION};

/// Why a file cannot be read as a journal.
#[derive(Debug)]
pub struct OpenError {
    pub path: PathBuf,
    pub problem: Problem,
}

#[derive(Debug)]
pub enum Problem {
    Io(io::Error),
    NotAFile,
    /// The file does not begin as a journal does.
    NotAJournal,
    OtherVersion(u32),
    /// The version is known, but the sizes in the header are not those of this version.
    OtherLayout,
    /// The file begins as a journal does, but its size, which is given here, is less than a header's.
    Short(u64),
    /// The header is not complete: the process is just starting, or was killed while it wrote the header.
    NotReady,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: ", shown(&self.path))?;
        match &self.problem {
            Problem::Io(error) => write!(f, "cannot be read: {error}"),
            Problem::NotAFile => write!(f, "not a file: give a .{} file or a folder of them", format::EXTENSION),
            Problem::NotAJournal => write!(f, "not a vramshim journal: give a .{} file", format::EXTENSION),
            Problem::OtherVersion(version) => write!(
                f,
                "written in journal format {version}, this program reads formats {OLDEST_VERSION} to {VERSION}: use the \
                 vramshim that goes with the library that wrote it"
            ),
            Problem::OtherLayout => write!(f, "header is damaged (impossible sizes): copy the file again"),
            Problem::Short(size) => {
                write!(
                    f,
                    "cut short ({size} bytes, the header alone has {HEADER_SIZE}): copy the file again"
                )
            }
            Problem::NotReady => write!(
                f,
                "no header yet: its process is just starting, or ended before it began"
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}
