//! Reads the file of PyTorch's tensors beside a journal (`format::tensors`). Its process may be running or killed.
//!
//! A line that is not complete or cannot be understood is counted and left out.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::lines::{self, Kind, Lines, Shared, unescaped};
use super::plain;
use crate::format::{
    Frame, TENSORS_EXTENSION, TENSORS_MAGIC, TENSORS_VERSION, TensorEvent, TensorLine, is_possible_device,
    is_possible_range,
};

pub(super) const KIND: Kind = Kind {
    magic: TENSORS_MAGIC,
    version: TENSORS_VERSION,
    what: "PyTorch's tensors",
};
/// A field whose value is not known.
const NOT_KNOWN: &[u8] = b"-";

/// Which lines a reader of the file wants. The others are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    Stacks,
    AllButStacks,
}

pub struct TensorFile {
    lines: Lines,
    texts: Shared,
    /// The version of PyTorch.
    pub torch: String,
    /// Whether the file tells what snapshots showed (`--torch state`), and not each tensor (`--torch record`).
    pub snapshots: bool,
    wanted: Wanted,
    /// Lines that could not be understood.
    pub damaged: u64,
}

fn frames(fields: &[&str], texts: &mut Shared) -> Option<Vec<Frame>> {
    let triples = fields.chunks(3).map(|triple| match triple {
        [file, line, function] => Some(Frame::new(texts.text(file), line.parse().ok()?, texts.text(function))),
        _ => None,
    });
    triples.collect()
}

/// A decimal number: a file may have millions of them.
fn decimal(field: &[u8]) -> Option<u64> {
    field.first()?;
    field.iter().try_fold(0u64, |number, letter| {
        let digit = letter.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// The line without its line feed. `None` if it cannot be understood or cannot be true, as for a record of a journal
/// (`format::record::possible`).
fn parse(line: &[u8], texts: &mut Shared) -> Option<TensorLine> {
    let &[kind, b'\t', ref rest @ ..] = line else {
        return None;
    };
    match kind {
        b'T' => {
            let rest = String::from_utf8_lossy(rest);
            let fields: Vec<&str> = rest.split('\t').collect();
            let (number, triples) = fields.split_first()?;
            return Some(TensorLine::Stack {
                number: number.parse().ok()?,
                frames: frames(triples, texts)?,
            });
        }
        b'C' => {
            let rest = String::from_utf8_lossy(rest);
            let (name, value) = rest.split_once('\t').filter(|(_, value)| !value.contains('\t'))?;
            let (name, value) = (unescaped(name), unescaped(value));
            return Some(TensorLine::Setting { name, value });
        }
        _ => {}
    }
    let (mut fields, mut count) = ([&b""[..]; 8], 0);
    for (place, field) in fields.iter_mut().zip(rest.split(|&letter| letter == b'\t')) {
        *place = field;
        count += 1;
    }
    let fields = &fields[..count];
    let number = |index: usize| decimal(fields.get(index)?);
    // Nothing is known of a field that is missing, too.
    let known = |index: usize| match fields.get(index) {
        None | Some(&NOT_KNOWN) => Some(None),
        Some(field) => decimal(field).map(Some),
    };
    let time_us = number(0)?;
    if kind == b'D' {
        let (recorded, lost) = (number(1)?, number(2)?);
        return Some(TensorLine::Drained {
            time_us,
            recorded,
            lost,
        });
    }
    let device = i16::try_from(number(1)?)
        .ok()
        .filter(|&device| is_possible_device(device))?;
    let range = || {
        let (address, size) = (number(2)?, number(3)?);
        is_possible_range(address, size).then_some((address, size))
    };
    let pool = |place| match fields.get(place) {
        None | Some(&NOT_KNOWN) => Some(None),
        Some(pool) => {
            let dot = pool.iter().position(|&letter| letter == b'.')?;
            Some(Some((decimal(&pool[..dot])?, decimal(&pool[dot + 1..])?)))
        }
    };
    let event = match kind {
        b'A' => {
            let (address, size) = range()?;
            TensorEvent::Allocated {
                address,
                size,
                stream: number(4)?,
                stack: number(5)?,
                allocated: known(6)?,
                pool: pool(7)?,
            }
        }
        b'F' => TensorEvent::Freed { address: number(2)? },
        b'S' => {
            let ((address, size), pool) = (range()?, pool(4)?);
            TensorEvent::SegmentObtained { address, size, pool }
        }
        b'U' => {
            let (address, size) = range()?;
            TensorEvent::SegmentReturned { address, size }
        }
        b'O' => {
            let (size, stack) = (number(2)?, number(3)?);
            TensorEvent::OutOfMemory { size, stack }
        }
        b'B' => TensorEvent::Balance {
            requested: known(2)?,
            allocated: known(3)?,
            active: known(4)?,
            reserved: known(5)?,
        },
        _ => return None,
    };
    Some(TensorLine::Event { time_us, device, event })
}

impl TensorFile {
    pub fn beside(journal: &Path) -> PathBuf {
        journal.with_extension(TENSORS_EXTENSION)
    }

    /// Opens the file. `None` if the file does not exist.
    pub fn open(path: &Path, wanted: Wanted) -> io::Result<Option<TensorFile>> {
        let Some((lines, head)) = lines::open(path, &KIND)? else {
            return Ok(None);
        };
        Ok(Some(TensorFile {
            lines,
            texts: Shared::default(),
            snapshots: head.get(2).is_some_and(|mode| mode == "state"),
            torch: head.into_iter().nth(1).unwrap_or_default(),
            wanted,
            damaged: 0,
        }))
    }

    /// What the next line says that can be understood; `None` at the end.
    pub fn next_line(&mut self) -> io::Result<Option<TensorLine>> {
        while let Some(line) = self.lines.next()? {
            let is_stack = line.starts_with(b"T\t");
            let is_wanted = match self.wanted {
                Wanted::All => true,
                Wanted::Stacks => is_stack,
                Wanted::AllButStacks => !is_stack,
            };
            if !is_wanted {
                continue;
            }
            match parse(line, &mut self.texts) {
                Some(parsed) => return Ok(Some(parsed)),
                None => self.damaged += 1,
            }
        }
        Ok(None)
    }
}

/// What PyTorch said last of its cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSums {
    /// When PyTorch was asked, or until when nothing changed, in microseconds since 1970.
    pub at_us: u64,
    /// Until when the file has the tensors.
    pub until_us: u64,
    /// By device, bytes of live tensors' blocks, and of all segments. PyTorch never used a device that is missing.
    pub devices: BTreeMap<i16, (u64, u64)>,
}

/// How much of a file's end is searched for sums, first and then: its process repeats them each few KiB (`SUMS_BYTES` in
/// `state.py`), but for what one snapshot writes.
const ENDS: [u64; 2] = [16 << 10, 4 << 20];

impl CacheSums {
    /// Reads the last sums at the end of a file, whatever its length. `None` if there are none.
    pub fn last(path: &Path) -> io::Result<Option<CacheSums>> {
        let Some(file) = plain::beside(path)? else {
            return Ok(None);
        };
        let size = file.metadata()?.len();
        for bytes in ENDS {
            let start = size.saturating_sub(bytes);
            let mut end = vec![0; (size - start) as usize];
            file.read_exact_at(&mut end, start)?;
            let found = CacheSums::in_end(&end, start == 0);
            if found.is_some() || start == 0 {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The last sums of this end of a file. Those of a moment are whole if a line `D` follows, and one stands before.
    fn in_end(end: &[u8], is_all: bool) -> Option<CacheSums> {
        let is_end = |&letter: &u8| letter == b'\n';
        let end = if is_all {
            end
        } else {
            &end[end.iter().position(is_end)? + 1..]
        };
        let mut sums = CacheSums::default();
        // Until when tensors are told by the last line `D`, by the one after, and by the one that follows the sums.
        let (mut until_us, mut later_us, mut next_us) = (None::<u64>, None, None);
        // The last piece is empty, or a line that is being written.
        for line in end.rsplit(is_end).skip(1) {
            let parsed = match line.first() {
                Some(b'B' | b'D') => parse(line, &mut Shared::default()),
                _ => None,
            };
            match parsed {
                Some(TensorLine::Event {
                    time_us,
                    device,
                    event: TensorEvent::Balance {
                        allocated, reserved, ..
                    },
                }) if next_us.is_some() => {
                    sums.devices.insert(device, allocated.zip(reserved)?);
                    // Nothing differed at a later line.
                    (sums.at_us, sums.until_us) = (time_us.max(later_us.unwrap_or(0)), until_us?);
                }
                _ if !sums.devices.is_empty() => return Some(sums),
                Some(TensorLine::Drained { time_us, .. }) => {
                    later_us = later_us.max(next_us);
                    next_us = Some(time_us);
                    until_us = until_us.or(next_us);
                }
                _ => (later_us, next_us) = (later_us.max(next_us), None),
            }
        }
        (is_all && !sums.devices.is_empty()).then_some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (TensorFile, Vec<TensorLine>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tensors");
        std::fs::write(&path, text).unwrap();
        let mut file = TensorFile::open(&path, Wanted::All).unwrap().unwrap();
        let mut lines = Vec::new();
        while let Some(line) = file.next_line().unwrap() {
            lines.push(line);
        }
        (file, lines)
    }

    const HEAD: &str = "vramshim-pytorch\t1\t7\t2.12.0\n";

    #[test]
    fn every_kind_of_line_is_read() {
        for row in [
            "C\tmax_split_size\t-1 => Setting { name: \"max_split_size\", value: \"-1\" }",
            "T\t0\ta\\\\b.py\t3\tf\\tg => \
             Stack { number: 0, frames: [Frame { file: \"a\\\\b.py\", line: 3, function: \"f\\tg\" }] }",
            "A\t10\t0\t4096\t100\t7\t1\t512\t0.7 => Event { time_us: 10, device: 0, event: Allocated { \
             address: 4096, size: 100, stream: 7, stack: 1, allocated: Some(512), pool: Some((0, 7)) } }",
            "A\t10\t0\t8192\t100\t7\t1\t-\t- => Event { time_us: 10, device: 0, event: Allocated { \
             address: 8192, size: 100, stream: 7, stack: 1, allocated: None, pool: None } }",
            "F\t11\t0\t4096\t100 => Event { time_us: 11, device: 0, event: Freed { address: 4096 } }",
            "S\t9\t1\t4096\t512 => \
             Event { time_us: 9, device: 1, event: SegmentObtained { address: 4096, size: 512, pool: None } }",
            "U\t12\t1\t4096\t512 => \
             Event { time_us: 12, device: 1, event: SegmentReturned { address: 4096, size: 512 } }",
            "O\t13\t0\t99\t5 => Event { time_us: 13, device: 0, event: OutOfMemory { size: 99, stack: 5 } }",
            "B\t13\t0\t-\t512\t600\t1024 => Event { time_us: 13, device: 0, event: Balance { \
             requested: None, allocated: Some(512), active: Some(600), reserved: Some(1024) } }",
            "D\t13\t1\t2 => Drained { time_us: 13, recorded: 1, lost: 2 }",
        ] {
            let (text, expected) = row.split_once(" => ").unwrap();
            let (file, lines) = read(&format!("{HEAD}{text}\n"));
            assert_eq!((file.torch.as_str(), file.damaged, lines.len()), ("2.12.0", 0, 1));
            assert_eq!(format!("{:?}", lines[0]), expected);
        }
    }

    /// A torn last line ends the file. Damaged lines, and what no process can have, are left out.
    #[test]
    fn what_cannot_be_read_or_true_is_counted() {
        for (text, whole, damaged) in [
            ("A\t10\tx\nF\t11\t0\t4096\t1\nA\t12\t0\t81", 1, 1),
            ("A\t1\t0\t4096\t72057594037927937\t0\t1\n", 0, 1),
            ("S\t2\t0\t18446744073709551615\t1\nU\t3\t32\t4096\t1\n", 0, 2),
            (
                "A\t4\t31\t4096\t72057594037927936\t0\t1\nO\t5\t0\t18446744073709551615\t0\n",
                2,
                0,
            ),
            (
                "A\t4\t0\t4096\t1\t0\t1\tx\t-\nA\t4\t0\t4096\t1\t0\t1\t-\t7\nC\tname\nB\t1\t0\tx\n",
                0,
                4,
            ),
        ] {
            let (file, lines) = read(&format!("{HEAD}{text}"));
            assert_eq!((lines.len(), file.damaged), (whole, damaged), "{text}");
        }
    }

    #[test]
    fn the_last_sums_are_found_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tensors");
        let last = |text: &str| {
            std::fs::write(&path, format!("{HEAD}{text}")).unwrap();
            let sums = CacheSums::last(&path).unwrap()?;
            Some((sums.at_us, sums.devices.into_iter().collect::<Vec<_>>()))
        };
        let two = "B\t9\t0\t1\t512\t512\t2048\nB\t9\t1\t1\t600\t600\t700\nD\t9\t1\t0\n";
        let both = Some((9, vec![(0, (512, 2048)), (1, (600, 700))]));
        assert_eq!(last(two), both);
        // Sums that are not all there yet are not taken; what is true until later is.
        for (more, at_us) in [
            ("B\t10\t0\t1\t7\t7\t8\n", 9),
            ("A\t10\t0\t4096\t1\t0\t0\nB\t10\t0\t1\t7\t7\t8\nB\t10", 9),
            ("D\t12\t1\t0\nD\t13\t1\t0\nF\t14\t0\t40", 13),
            (&"A\t9\t0\t4096\t1\t0\t0\n".repeat(90_000), 9),
        ] {
            assert_eq!(
                last(&format!("{two}{more}")),
                both.clone().map(|(_, devices)| (at_us, devices)),
                "{more:.99}"
            );
        }
        assert_eq!(
            last(&format!("{two}{}", "A\t9\t0\t4096\t1\t0\t0\n".repeat(300_000))),
            None,
            "too far"
        );
        for none in [
            "",
            "D\t9\t1\t0\n",
            "B\t9\t0\t1\t-\t-\t2048\nD\t9\t1\t0\n",
            "B\t9\t40\t1\t1\t1\t1\nD\t9\t1\t0\n",
        ] {
            assert_eq!(last(none), None, "{none}");
        }
    }
}
