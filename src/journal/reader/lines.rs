//! Lines of the text files beside a journal: fields between tabs, written by a process that may have been killed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::plain;

/// No line of a job is longer; a longer one is damage.
pub(super) const LONGEST_LINE_BYTES: u64 = 1 << 20;

pub(super) struct Lines(BufReader<File>);

/// Opens the file if it exists, and reads its first line. `magic` and `version` must be the line's first fields, and
/// `what` names the file in the error. Returns the lines that follow, and the other fields of the first line.
pub(super) fn open(path: &Path, magic: &str, version: u64, what: &str) -> io::Result<Option<(Lines, Vec<String>)>> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let file = match plain::open(path) {
        Ok(Some(file)) => file,
        Ok(None) => return Err(wrong("not a plain file".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut lines = Lines(BufReader::new(file));
    let head = lines.next()?.unwrap_or_default();
    let mut fields = head.split('\t');
    if fields.next() != Some(magic) {
        return Err(wrong(format!("not a file of {what}")));
    }
    if fields.next().and_then(|field| field.parse().ok()) != Some(version) {
        return Err(wrong("a newer vramshim wrote this file".to_owned()));
    }
    Ok(Some((lines, fields.map(unescaped).collect())))
}

impl Lines {
    /// The next complete line without its line feed; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<String>> {
        let mut bytes = Vec::new();
        let mut limited = (&mut self.0).take(LONGEST_LINE_BYTES);
        limited.read_until(b'\n', &mut bytes)?;
        match bytes.pop() {
            Some(b'\n') => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            // The process was killed while it wrote this line, or writes it now.
            _ => Ok(None),
        }
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
                self.0.insert(text, shared.clone());
                shared
            }
        }
    }
}
