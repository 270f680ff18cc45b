//! Lines of the text files beside a journal: fields between tabs, written by a process that may have been killed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::plain;

/// No line of a job is longer; a longer one is damage.
pub(super) const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// What one call of the system reads.
const BUFFER_BYTES: usize = 64 << 10;

/// The lines of a file that its process may still write.
pub(super) struct Lines {
    file: BufReader<File>,
    /// The line that was returned, or the begin of one whose end has not been read.
    begun: Vec<u8>,
}

/// Why a file cannot be one that lies beside a journal: what an `InvalidData` has inside.
#[derive(Debug, thiserror::Error)]
pub enum NotBeside {
    #[error("not a plain file")]
    NotAFile,
    #[error("not a file of {0}")]
    OtherFile(&'static str),
    #[error("a newer vramshim wrote this file")]
    OtherVersion,
}

/// What the first line of a file must begin with.
pub(super) struct Kind {
    pub(super) magic: &'static str,
    pub(super) version: u64,
    /// What the file has, for the error.
    pub(super) what: &'static str,
}

/// Opens the file if it exists, and reads its first line. Returns the lines that follow, and the first line's fields behind
/// magic and version.
pub(super) fn open(path: &Path, kind: &Kind) -> io::Result<Option<(Lines, Vec<String>)>> {
    let wrong = |why: NotBeside| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let file = match plain::beside(path) {
        Ok(Some(file)) => file,
        Ok(None) => return wrong(NotBeside::NotAFile),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut lines = Lines {
        file: BufReader::with_capacity(BUFFER_BYTES, file),
        begun: Vec::new(),
    };
    let head = String::from_utf8_lossy(lines.next()?.unwrap_or_default());
    let mut fields = head.split('\t');
    let magic = fields.next();
    if magic != Some(kind.magic) {
        return wrong(NotBeside::OtherFile(kind.what));
    }
    if fields.next().and_then(|field| field.parse().ok()) != Some(kind.version) {
        return wrong(NotBeside::OtherVersion);
    }
    let more = fields.map(unescaped).collect();
    Ok(Some((lines, more)))
}

impl Lines {
    /// The next complete line without its line feed. After `None` there may be more later. A line that is too long is damage,
    /// and ends the file.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if self.begun.ends_with(b"\n") {
            self.begun.clear();
        }
        let room = LONGEST_LINE_BYTES - self.begun.len() as u64;
        (&mut self.file).take(room).read_until(b'\n', &mut self.begun)?;
        // Without a line feed, the process was killed while it wrote this line, or writes it now.
        Ok(self.begun.strip_suffix(b"\n"))
    }
}

/// The text of a field, in which `\t`, `\n` and `\\` stand for tab, line feed and backslash.
pub(super) fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('t') => out.push('\t'),
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            letter => out.push(letter),
        }
    }
    out
}

/// More texts than a job has. Those of a hostile file that follow are not kept.
const MOST_SHARED: usize = 1 << 18;

/// Texts of fields, each kept once: many frames have the same file.
#[derive(Default)]
pub(super) struct Shared(HashMap<String, Arc<str>>);

impl Shared {
    /// The text of a field (`unescaped`).
    pub(super) fn text(&mut self, field: &str) -> Arc<str> {
        let text = unescaped(field);
        match self.0.get(&text) {
            Some(known) => known.clone(),
            None => {
                let shared: Arc<str> = text.as_str().into();
                if self.0.len() < MOST_SHARED {
                    self.0.insert(text, shared.clone());
                }
                shared
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{stacks, tensors};
    use super::*;

    #[test]
    fn another_file_is_refused_and_no_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for kind in [&stacks::KIND, &tensors::KIND] {
            let newer = format!("{}\t2\t7\n", kind.magic);
            assert!(open(&path, kind).unwrap().is_none());
            for text in ["", "hello\n", &newer] {
                std::fs::write(&path, text).unwrap();
                assert!(open(&path, kind).is_err(), "{text:?}");
            }
            std::fs::remove_file(&path).unwrap();
        }
    }
}
