//! Reads the file of PyTorch's tensors beside a journal (`format::tensors`). Its process may be running or killed.
//!
//! A line that is not complete or cannot be understood is counted and left out.

use std::io;
use std::path::{Path, PathBuf};

use super::lines::{self, Lines, Shared};
use crate::format::{
    Frame, TENSORS_EXTENSION, TENSORS_MAGIC, TENSORS_VERSION, TensorLine, is_possible_device, is_possible_range,
};

pub struct TensorFile {
    lines: Lines,
    texts: Shared,
    /// The version of PyTorch.
    pub torch: String,
    /// Lines that could not be understood.
    pub damaged: u64,
}

fn frames(fields: &[&str], texts: &mut Shared) -> Option<Vec<Frame>> {
    let triples = fields.chunks(3).map(|triple| match triple {
        [file, line, function] => Some(Frame {
            file: texts.text(file),
            line: line.parse().ok()?,
            function: texts.text(function),
        }),
        _ => None,
    });
    triples.collect()
}

/// The line without its line feed. `None` if it cannot be understood or cannot be true, as for a record of a journal
/// (`format::record::possible`).
fn parse(line: &str, texts: &mut Shared) -> Option<TensorLine> {
    let mut fields = line.split('\t');
    let kind = fields.next()?;
    let fields: Vec<&str> = fields.collect();
    if kind == "T" {
        let (number, rest) = fields.split_first()?;
        return Some(TensorLine::Stack {
            number: number.parse().ok()?,
            frames: frames(rest, texts)?,
        });
    }
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let time_us = number(0)?;
    if kind == "D" {
        return Some(TensorLine::Drained {
            time_us,
            recorded: number(1)?,
            lost: number(2)?,
        });
    }
    let device = fields
        .get(1)?
        .parse()
        .ok()
        .filter(|&device| is_possible_device(device))?;
    let range = |address: u64, size: u64| is_possible_range(address, size).then_some(());
    Some(match kind {
        "A" => {
            let (address, size) = (number(2)?, number(3)?);
            range(address, size)?;
            TensorLine::Allocated {
                time_us,
                device,
                address,
                size,
                stream: number(4)?,
                stack: number(5)?,
            }
        }
        "F" => TensorLine::Freed {
            time_us,
            device,
            address: number(2)?,
        },
        "S" | "U" => {
            let (address, size) = (number(2)?, number(3)?);
            range(address, size)?;
            match kind {
                "S" => TensorLine::SegmentObtained {
                    time_us,
                    device,
                    address,
                    size,
                },
                _ => TensorLine::SegmentReturned {
                    time_us,
                    device,
                    address,
                    size,
                },
            }
        }
        "O" => TensorLine::OutOfMemory {
            time_us,
            device,
            size: number(2)?,
            stack: number(3)?,
        },
        _ => return None,
    })
}

impl TensorFile {
    /// The path of the file that belongs to a journal.
    pub fn beside(journal: &Path) -> PathBuf {
        journal.with_extension(TENSORS_EXTENSION)
    }

    /// Opens the file. `None` if the file does not exist.
    pub fn open(path: &Path) -> io::Result<Option<TensorFile>> {
        let what = "PyTorch's tensors";
        let Some((lines, head)) = lines::open(path, TENSORS_MAGIC, TENSORS_VERSION, what)? else {
            return Ok(None);
        };
        Ok(Some(TensorFile {
            lines,
            texts: Shared::default(),
            torch: head.into_iter().nth(1).unwrap_or_default(),
            damaged: 0,
        }))
    }

    /// What the next line says that can be understood; `None` at the end.
    pub fn next_line(&mut self) -> io::Result<Option<TensorLine>> {
        while let Some(line) = self.lines.next()? {
            match parse(&line, &mut self.texts) {
                Some(parsed) => return Ok(Some(parsed)),
                None => self.damaged += 1,
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (TensorFile, Vec<TensorLine>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tensors");
        std::fs::write(&path, text).unwrap();
        let mut file = TensorFile::open(&path).unwrap().unwrap();
        let mut lines = Vec::new();
        while let Some(line) = file.next_line().unwrap() {
            lines.push(line);
        }
        (file, lines)
    }

    #[test]
    fn every_kind_of_line_is_read() {
        let (file, lines) = read(
            "vramshim-tensors\t1\t7\t2.12.0\nT\t0\ta\\\\b.py\t3\tf\\tg\nA\t10\t0\t4096\t100\t0\t0\nF\t11\t0\t4096\t100\n\
             S\t9\t1\t4096\t2097152\nU\t12\t1\t4096\t2097152\nO\t13\t0\t99\t0\nD\t13\t1\t2\n",
        );
        let frame = Frame {
            file: "a\\b.py".into(),
            line: 3,
            function: "f\tg".into(),
        };
        assert_eq!(
            lines[0],
            TensorLine::Stack {
                number: 0,
                frames: vec![frame]
            }
        );
        assert_eq!((file.torch.as_str(), file.damaged, lines.len()), ("2.12.0", 0, 7));
        assert_eq!(
            lines[6],
            TensorLine::Drained {
                time_us: 13,
                recorded: 1,
                lost: 2
            }
        );
    }

    #[test]
    fn a_torn_last_line_ends_the_file_and_a_damaged_one_is_left_out() {
        let (file, lines) = read("vramshim-tensors\t1\t7\t2.12.0\nA\t10\tx\nF\t11\t0\t4096\t1\nA\t12\t0\t81");
        assert_eq!((lines.len(), file.damaged), (1, 1));
    }

    #[test]
    fn what_no_process_can_have_is_damaged() {
        let (file, lines) = read(
            "vramshim-tensors\t1\t7\t2.12.0\nA\t1\t0\t4096\t72057594037927937\t0\t1\nS\t2\t0\t18446744073709551615\t1\n\
             U\t3\t32\t4096\t1\nA\t4\t31\t4096\t72057594037927936\t0\t1\nO\t5\t0\t18446744073709551615\t0\n",
        );
        assert_eq!((lines.len(), file.damaged), (2, 3));
    }

    #[test]
    fn another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tensors");
        assert!(TensorFile::open(&path).unwrap().is_none());
        for text in ["", "hello\n", "vramshim-tensors\t2\t7\t2.12.0\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(TensorFile::open(&path).is_err(), "{text:?}");
        }
    }
}
