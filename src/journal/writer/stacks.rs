//! Writes the file of stacks beside a journal (`format::stacks`). The file is created with its first line.
//!
//! If a line cannot be written, as on a full disk, nothing is written for a second. Then the file is tried again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use once_cell::sync::OnceCell;

use super::mapping::{RETRY_NS, clock_ns};
use crate::file::KeptFile;
use crate::format::{NoStack, STACKS_EXTENSION, STACKS_MAGIC, STACKS_VERSION};
use base::file::{c_path, file_size_limit, open, write_all};
use base::say::warn;
use base::signals::without_signals_of_writes;
use base::text::shown;

/// The file never grows beyond this.
const MOST_BYTES: u64 = 128 << 20;
/// A longer field is cut, so that no line is too long for the reader.
const LONGEST_FIELD_BYTES: usize = 4096;

/// One line of the file.
pub struct Line(Vec<u8>);

impl Line {
    /// A line that begins with its kind and its number.
    pub fn new(kind: u8, number: u64) -> Line {
        let mut line = Line(Vec::with_capacity(128));
        line.0.push(kind);
        line.field(number.to_string().as_bytes())
    }

    /// Adds a field. Tab, line feed and backslash are escaped.
    pub fn field(mut self, bytes: &[u8]) -> Line {
        self.0.push(b'\t');
        for &byte in &bytes[..bytes.len().min(LONGEST_FIELD_BYTES)] {
            match byte {
                b'\t' => self.0.extend(b"\\t"),
                b'\n' => self.0.extend(b"\\n"),
                b'\\' => self.0.extend(b"\\\\"),
                other => self.0.push(other),
            }
        }
        self
    }
}

#[derive(Default)]
pub struct StackFile {
    path: PathBuf,
    opened: OnceCell<KeptFile>,
    bytes: AtomicU64,
    /// The file ends inside a line.
    is_torn: AtomicBool,
    /// Nothing is written before this time of CLOCK_MONOTONIC; 0 before the first failure.
    retry_at_ns: AtomicU64,
}

impl StackFile {
    pub fn beside(journal: &Path) -> StackFile {
        StackFile {
            path: journal.with_extension(STACKS_EXTENSION),
            ..StackFile::default()
        }
    }

    /// Whether nothing is written for now, because a line could not be written.
    pub fn rests(&self) -> bool {
        let retry_at_ns = self.retry_at_ns.load(Relaxed);
        retry_at_ns > 0 && clock_ns(libc::CLOCK_MONOTONIC) < retry_at_ns
    }

    /// Appends a line by one system call, so that it survives the process.
    pub fn append(&self, line: Line) -> Result<(), NoStack> {
        if self.rests() {
            return Err(NoStack::Failed);
        }
        let mut bytes = line.0;
        bytes.push(b'\n');
        let total = self.bytes.fetch_add(bytes.len() as u64, Relaxed) + bytes.len() as u64;
        // A write beyond RLIMIT_FSIZE would raise SIGXFSZ, which kills the job.
        if total > MOST_BYTES.min((file_size_limit() as u64).saturating_sub(4096)) {
            return Err(NoStack::Full);
        }
        self.write(bytes).map_err(|errno| self.rest(errno))
    }

    fn write(&self, mut line: Vec<u8>) -> Result<(), i32> {
        let opened = self.opened.get_or_try_init(|| create(&self.path))?;
        let fd = opened.descriptor(libc::O_WRONLY | libc::O_APPEND, |_| ())?;
        let was_torn = self.is_torn.swap(false, Relaxed);
        if was_torn {
            // No record refers to the line that was not written whole.
            line.insert(0, b'\n');
        }
        let mut left = &line[..];
        let outcome = append_all(fd, &mut left);
        if outcome.is_err() {
            let last = line[..line.len() - left.len()].last();
            self.is_torn
                .store(last.map_or(was_torn, |&last| last != b'\n'), Relaxed);
        }
        outcome
    }

    /// A line could not be written. The first time this is said.
    #[cold]
    fn rest(&self, errno: i32) -> NoStack {
        let retry_at_ns = clock_ns(libc::CLOCK_MONOTONIC).saturating_add(RETRY_NS);
        if self.retry_at_ns.swap(retry_at_ns, Relaxed) == 0 {
            warn!(
                "stacks {} cannot be written: {}; the job goes on, and until the file can be written, new stacks and marks \
                 are lost",
                shown(&self.path),
                io::Error::from_raw_os_error(errno)
            );
        }
        NoStack::Failed
    }
}

fn create(path: &Path) -> Result<KeptFile, i32> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_EXCL;
    let name = c_path(path)?;
    let fd = open(&name, flags).or_else(|errno| {
        // The journal of this name is new, so a file beside it is left over from one that was deleted.
        if errno == libc::EEXIST && std::fs::remove_file(path).is_ok() {
            return open(&name, flags);
        }
        Err(errno)
    })?;
    let first = format!("{STACKS_MAGIC}\t{STACKS_VERSION}\t{}\n", std::process::id());
    let written = append_all(fd, &mut first.as_bytes()).and_then(|()| KeptFile::new(path.to_owned(), fd));
    written.inspect_err(|_| {
        // SAFETY: the descriptor was opened above and is used nowhere else.
        unsafe { libc::close(fd) };
        let _ = std::fs::remove_file(path);
    })
}

/// Appends the bytes. What `bytes` has afterwards was not written.
fn append_all(fd: libc::c_int, bytes: &mut &[u8]) -> Result<(), i32> {
    write_all(bytes, |left| {
        // SAFETY: the bytes are readable.
        without_signals_of_writes(|| unsafe { libc::write(fd, left.as_ptr().cast(), left.len()) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Stacks;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("a.vraj");
        std::fs::write(folder.path().join("a.stacks"), "left over").unwrap();
        let file = StackFile::beside(&journal);
        assert_eq!(
            std::fs::read_to_string(folder.path().join("a.stacks")).unwrap(),
            "left over",
            "nothing is written before the first line"
        );
        let python = Line::new(b'P', 7)
            .field(b"a\tb\n\\.py")
            .field(b"12")
            .field(&[b'f'; 5000]);
        file.append(python).unwrap();
        file.append(Line::new(b'T', 1).field(b"python").field(b"7")).unwrap();
        let other = "\\".repeat(3000);
        file.append(Line::new(b'N', 1).field(other.as_bytes())).unwrap();
        let read = Stacks::beside(&journal).unwrap().unwrap();
        let frame = &read.get(1).unwrap().frames[0];
        assert_eq!(
            (&*frame.file, frame.line, frame.function.len()),
            ("a\tb\n\\.py", 12, 4096)
        );
        assert_eq!(
            (read.text(1), read.pid, read.damaged),
            (Some(&other[..]), std::process::id(), 0)
        );
    }
}
