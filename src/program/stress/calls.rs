//! A file that names the calls in progress. Each thread of a worker has an entry and writes it before and after a call. If
//! the worker hangs or crashes, the file tells in which call.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const ENTRY_BYTES: usize = 64;
/// In an entry: the number of the last call, 1 while it is in progress, its bytes, and its name.
const NUMBER: std::ops::Range<usize> = 0..8;
const BUSY: usize = 8;
const BYTES: std::ops::Range<usize> = 16..24;
const NAME: std::ops::Range<usize> = 24..ENTRY_BYTES;

/// The entry of a thread.
pub struct Entry {
    file: File,
    offset: u64,
    bytes: [u8; ENTRY_BYTES],
    number: u64,
}

impl Entry {
    pub fn open(path: &Path, thread: usize) -> io::Result<Entry> {
        Ok(Entry {
            file: OpenOptions::new().write(true).create(true).truncate(false).open(path)?,
            offset: (thread * ENTRY_BYTES) as u64,
            bytes: [0; ENTRY_BYTES],
            number: 0,
        })
    }

    pub fn begin(&mut self, name: &str, bytes: u64) {
        self.number += 1;
        self.bytes = [0; ENTRY_BYTES];
        self.bytes[NUMBER].copy_from_slice(&self.number.to_le_bytes());
        self.bytes[BUSY] = 1;
        self.bytes[BYTES].copy_from_slice(&bytes.to_le_bytes());
        let length = name.len().min(NAME.len());
        self.bytes[NAME][..length].copy_from_slice(&name.as_bytes()[..length]);
        self.write(ENTRY_BYTES);
    }

    pub fn end(&mut self) {
        self.bytes[BUSY] = 0;
        self.write(BUSY + 1);
    }

    /// If the disk is full, a hang is told without the call.
    fn write(&self, length: usize) {
        let _ = self.file.write_all_at(&self.bytes[..length], self.offset);
    }
}

/// The entry of a thread as the starter of the worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub number: u64,
    pub is_busy: bool,
    pub bytes: u64,
    pub name: String,
}

/// The entries of all threads; none if the file is not there yet.
pub fn read(path: &Path) -> Vec<Seen> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let seen = |entry: &[u8]| Seen {
        number: number(&entry[NUMBER]),
        is_busy: entry[BUSY] == 1,
        bytes: number(&entry[BYTES]),
        name: String::from_utf8_lossy(&entry[NAME]).trim_end_matches('\0').to_owned(),
    };
    bytes.chunks_exact(ENTRY_BYTES).map(seen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_in_progress_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        assert!(read(&path).is_empty());
        let mut first = Entry::open(&path, 0).unwrap();
        let mut second = Entry::open(&path, 1).unwrap();
        first.begin("cuMemAlloc", 4096);
        second.begin("cuMemFree", 0);
        second.end();
        let seen = |number, is_busy, bytes, name: &str| Seen {
            number,
            is_busy,
            bytes,
            name: name.into(),
        };
        let first_seen = seen(1, true, 4096, "cuMemAlloc");
        assert_eq!(read(&path), [first_seen, seen(1, false, 0, "cuMemFree")]);
    }
}
