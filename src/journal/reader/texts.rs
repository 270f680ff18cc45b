//! Reads the texts of marks from the file of stacks beside a journal, while its process writes the file. Only what was
//! appended since the last time is read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::lines::{self, Lines, unescaped};
use super::stacks::{KIND, LARGEST_FILE_BYTES, Stacks};

#[derive(Default)]
pub struct Texts {
    path: PathBuf,
    /// `None` until the file has its first line.
    lines: Option<Lines>,
    read_bytes: u64,
    /// Whether the file is not of this format, or too long.
    given_up: bool,
    texts: HashMap<u64, String>,
}

impl Texts {
    pub fn beside(journal: &Path) -> Texts {
        Texts {
            path: Stacks::path(journal),
            ..Texts::default()
        }
    }

    /// The text with this number, if the file has it by now.
    pub fn get(&mut self, number: u64) -> Option<&str> {
        if !self.texts.contains_key(&number) && !self.given_up {
            self.read_on();
        }
        self.texts.get(&number).map(String::as_str)
    }

    fn read_on(&mut self) {
        if self.lines.is_none() {
            match lines::open(&self.path, &KIND) {
                Ok(opened) => self.lines = opened.map(|(lines, _)| lines),
                // The first line of a short file may not be whole yet.
                Err(_) => self.given_up = std::fs::metadata(&self.path).is_ok_and(|file| file.len() > 64),
            }
        }
        let Some(lines) = &mut self.lines else { return };
        while let Ok(Some(line)) = lines.next() {
            self.read_bytes += line.len() as u64 + 1;
            self.given_up |= self.read_bytes > LARGEST_FILE_BYTES;
            if self.given_up {
                return;
            }
            let line = String::from_utf8_lossy(line);
            let mut fields = line.split('\t');
            if let (Some("N"), Some(number), Some(text)) = (fields.next(), fields.next(), fields.next())
                && let Ok(number) = number.parse()
            {
                self.texts.insert(number, unescaped(text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
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
