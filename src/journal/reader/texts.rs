//! Reads the texts of marks from the file of stacks beside a journal, while its process writes the file. Only what was
//! appended since the last time is read.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::lines::{LONGEST_LINE_BYTES, unescaped};
use super::plain;
use super::stacks::{LARGEST_FILE_BYTES, Stacks};
use crate::format::{STACKS_MAGIC, STACKS_VERSION};

pub struct Texts {
    path: PathBuf,
    /// `None` until the file exists.
    file: Option<File>,
    read_bytes: u64,
    /// The begin of a line whose end has not been read.
    begun: Vec<u8>,
    is_first_line: bool,
    /// Whether the file is not of this format, or too long.
    given_up: bool,
    texts: HashMap<u64, String>,
}

impl Texts {
    pub fn beside(journal: &Path) -> Texts {
        Texts {
            path: Stacks::path(journal),
            file: None,
            read_bytes: 0,
            begun: Vec::new(),
            is_first_line: true,
            given_up: false,
            texts: HashMap::new(),
        }
    }

    /// The text with this number, if the file has it by now.
    pub fn get(&mut self, number: u64) -> Option<&str> {
        if !self.texts.contains_key(&number) {
            self.read_on();
        }
        self.texts.get(&number).map(String::as_str)
    }

    fn read_on(&mut self) {
        let mut part = vec![0; 1 << 16];
        while !self.given_up {
            if self.file.is_none() {
                self.file = plain::open(&self.path).ok().flatten();
            }
            let Some(Ok(got @ 1..)) = self.file.as_mut().map(|file| file.read(&mut part)) else {
                return;
            };
            self.read_bytes += got as u64;
            for piece in part[..got].split_inclusive(|&byte| byte == b'\n') {
                self.begun.extend_from_slice(piece);
                if piece.ends_with(b"\n") && !self.given_up {
                    let line = std::mem::take(&mut self.begun);
                    self.take(&String::from_utf8_lossy(&line[..line.len() - 1]));
                }
            }
            self.given_up |= self.read_bytes > LARGEST_FILE_BYTES || self.begun.len() as u64 > LONGEST_LINE_BYTES;
        }
    }

    fn take(&mut self, line: &str) {
        let mut fields = line.split('\t');
        if std::mem::take(&mut self.is_first_line) {
            let version = STACKS_VERSION.to_string();
            self.given_up |= fields.next() != Some(STACKS_MAGIC) || fields.next() != Some(version.as_str());
        } else if let (Some("N"), Some(number), Some(text)) = (fields.next(), fields.next(), fields.next())
            && let Ok(number) = number.parse()
        {
            self.texts.insert(number, unescaped(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("a.vraj");
        let mut texts = Texts::beside(&journal);
        assert_eq!(texts.get(1), None);
        let mut file = File::create(folder.path().join("a.stacks")).unwrap();
        file.write_all(b"vramshim-stacks\t1\t7\nP\t1\ta.py\t3\tf\nN\t1\tepoch\\t3\nN\t2\tha")
            .unwrap();
        assert_eq!(texts.get(1), Some("epoch\t3"));
        assert_eq!(texts.get(2), None);
        file.write_all(b"lf\nX\nN\tone\tx\nN\t3\n").unwrap();
        assert_eq!(
            (texts.get(2).map(str::to_owned), texts.get(3)),
            (Some("half".to_owned()), None)
        );
    }

    #[test]
    fn another_file_has_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.stacks"), b"hello\nN\t1\tx\n").unwrap();
        assert_eq!(Texts::beside(&folder.path().join("a.vraj")).get(1), None);
    }
}
