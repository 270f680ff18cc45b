//! One journal file that is open for reading: its header, and whether its process still runs.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::{OpenError, Problem};
use super::gaps::Gaps;
use super::header::{Header, parse_header};
use super::plain;
use crate::format::{HEADER_SIZE, LARGEST_RING, RawRecord, SLOT_SIZE, SlotState};
use base::identity;
use base::locks::{Owner, WHOLE};

/// A hole with more slots than this has none that a thread holds in reserve. What the library made room for, and no thread
/// has written yet, is a hole, too.
const LONGEST_RESERVE: u64 = 1 << 16;
/// If two slots that are read again are at most this far apart, they are read together with the slots between them.
const NEAR: u64 = 64;

/// Whether the process of a journal runs, and if not, how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    /// The process ran when this copy of its journal was made.
    Dumped,
    Exited(i32),
    /// The process ended without noting an exit: a signal killed it, the job made the system call itself, or the
    /// machine went down.
    Killed,
}

/// A shorter file is read whole, with its holes. The library allocates what it lets a journal grow by, so its files have
/// none.
const LONGEST_UNASKED_BYTES: u64 = 1 << 30;

/// How often a header is read that looks damaged. A process writes most parts once in its life.
const MOST_READS: usize = 3;

pub struct Journal {
    file: File,
    path: PathBuf,
    head: Head,
}

impl Journal {
    /// Opens a journal. The process that writes the journal must not call this: if a process closes any descriptor of a
    /// file, the kernel drops the process's locks on the file.
    pub fn open(path: &Path) -> Result<Journal, OpenError> {
        let read = || {
            let file = plain::journal(path).map_err(Problem::Io)?.ok_or(Problem::NotAFile)?;
            Ok((Head::read(&file)?, file))
        };
        let path = path.to_owned();
        match read() {
            Ok((head, file)) => Ok(Journal { file, path, head }),
            Err(problem) => Err(OpenError { path, problem }),
        }
    }

    /// Reads the header again, and checks again whether the process still runs.
    pub fn refresh(&mut self) -> Result<(), OpenError> {
        self.head = Head::read(&self.file).map_err(|problem| self.error(problem))?;
        Ok(())
    }

    pub fn error(&self, problem: Problem) -> OpenError {
        OpenError {
            path: self.path.clone(),
            problem,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn header(&self) -> &Header {
        &self.head.header
    }

    /// The state of the process when the journal was opened or last refreshed.
    pub fn state(&self) -> State {
        self.head.state
    }

    /// The size of the file in bytes, as of the last `refresh`.
    pub fn size(&self) -> u64 {
        self.head.size
    }

    /// When the process was last known to be alive, in nanoseconds after the creation of the journal.
    pub fn alive_ns(&self) -> u64 {
        self.header().alive_ns
    }

    /// Nanoseconds from the creation of the journal to the exit, if the process noted its exit.
    pub fn ended_ns(&self) -> Option<u64> {
        self.header().ended.then_some(self.header().ended_ns)
    }

    /// Events that happened but are not in the file: events that the writer counted as lost, and used slots beyond the
    /// end of the file. Slots beyond the end are not counted while the process runs, because the file may still grow.
    /// If the file was cut short, the number is an upper bound: threads may have held some of
    /// the slots in reserve.
    pub fn lost(&self) -> u64 {
        self.header().lost.saturating_add(self.cut_off())
    }

    /// Those of the lost events that were at the end of the file, which was cut short.
    pub fn cut_off(&self) -> u64 {
        let Header { slots, claimed, .. } = self.head.header;
        let used = match self.head.header.ring {
            Some(_) => slots,
            // A damaged header may lack the number.
            None if slots == 0 => claimed,
            None => claimed.min(slots),
        };
        if self.state() == State::Running {
            return 0;
        }
        used.saturating_sub(self.slots())
    }

    /// The number of slots that threads took, but at most the number of slots in the file.
    pub fn claimed(&self) -> u64 {
        self.header().claimed.min(self.slots())
    }

    /// The slots of the ring that are in the file, as first slot and count, and how often a place there was taken.
    pub(super) fn ring(&self) -> Option<(u64, u64, u64)> {
        let (first, count) = self.header().ring?;
        let count = count.min(self.slots().saturating_sub(first)).min(LARGEST_RING);
        Some((first, count, self.header().ring_taken))
    }

    /// What finds the slots of zeros that must have held a record. `None` if the file does not tell how many slots were taken:
    /// a damaged header may have other numbers, and a copy of a running job's journal has zeros in place of what the job wrote
    /// meanwhile.
    pub(super) fn gaps(&self) -> Option<Gaps> {
        let header = self.header();
        let tells = header.slots > 0 && header.knows_slots() && !header.is_dump;
        tells.then(|| Gaps::new(self.claimed(), self.ring()))
    }

    /// The record of a slot that looked damaged. While the process runs, it may have written another record there
    /// during the first look, as it does in the ring.
    pub(super) fn slot_again(&self, index: u64) -> Option<RawRecord> {
        let mut slot = Vec::new();
        if self.state() != State::Running || self.read_slots(&mut slot, index, 1).ok()? != 1 {
            return None;
        }
        match SlotState::read(index, &slot) {
            SlotState::Committed(record) => Some(record),
            _ => None,
        }
    }

    /// Reads `count` slots from slot `first` on into the buffer. Returns the number of slots that the file had.
    pub(super) fn read_slots(&self, buffer: &mut Vec<u8>, first: u64, count: u64) -> io::Result<u64> {
        buffer.resize(count as usize * SLOT_SIZE, 0);
        let got = self.read(buffer, HEADER_SIZE as u64 + first * SLOT_SIZE as u64)?;
        Ok((got / SLOT_SIZE) as u64)
    }

    /// The first slot to read from `first` on, behind a long hole if one begins there.
    pub(super) fn past_hole(&self, first: u64) -> u64 {
        let written = self.written_from(HEADER_SIZE as u64 + first * SLOT_SIZE as u64);
        let found = written.map_or(u64::MAX, |written| {
            written.start.saturating_sub(HEADER_SIZE as u64) / SLOT_SIZE as u64
        });
        let found = found.min(self.claimed().saturating_sub(LONGEST_RESERVE));
        if found > first.saturating_add(LONGEST_RESERVE) {
            found
        } else {
            first
        }
    }

    /// Fills `buffer` from the file at `offset`, up to the end of the file. Returns the number of bytes read.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fill(&self.file, buffer, offset)
    }

    /// Where the file's next bytes are that were ever written, from `offset` on; `None` if there are none. Between them
    /// are holes, which read as zeros: unused slots. So what a reader reads is bounded by what the file takes on disk,
    /// however long the file says that it is. Of a file without long holes, as the library writes it, the file system is
    /// not asked: a remote one may not know yet what the process has stored in its mapping.
    pub(super) fn written_from(&self, offset: u64) -> Option<Range<u64>> {
        if !self.head.has_holes {
            return (offset < self.size()).then_some(offset..self.size());
        }
        let seek = |from: u64, whence: libc::c_int| {
            let from = libc::off_t::try_from(from).unwrap_or(libc::off_t::MAX);
            // SAFETY: lseek takes numbers only, and no read of ours depends on the position of the descriptor.
            let found = unsafe { libc::lseek(self.file.as_raw_fd(), from, whence) };
            u64::try_from(found).map_err(|_| io::Error::last_os_error().raw_os_error())
        };
        let start = match seek(offset, libc::SEEK_DATA) {
            Ok(start) => start.max(offset),
            // From here on there is nothing but a hole.
            Err(Some(libc::ENXIO)) => return None,
            Err(_) => offset,
        };
        let end = seek(start, libc::SEEK_HOLE).unwrap_or(self.size());
        (start < self.size()).then(|| start..end.clamp(start, self.size()))
    }

    /// The number of complete slots in the file.
    pub(super) fn slots(&self) -> u64 {
        self.size().saturating_sub(HEADER_SIZE as u64) / SLOT_SIZE as u64
    }
}

/// How many of `slots`, which are in order, are read together: each is near the one before, and all are in one portion.
pub(super) fn read_together(slots: &[u64], portion: u64) -> usize {
    let is_near = |pair: &&[u64]| pair[1] - pair[0] <= NEAR && pair[1] - slots[0] < portion;
    slots.windows(2).take_while(is_near).count() + 1
}

/// The header and the state of file and process, read at one moment.
struct Head {
    header: Header,
    size: u64,
    state: State,
    /// The file takes much less on disk than its size.
    has_holes: bool,
}

impl Head {
    fn read(file: &File) -> Result<Head, Problem> {
        let read = || {
            let mut head = vec![0; HEADER_SIZE];
            let got = fill(file, &mut head, 0).map_err(Problem::Io)?;
            head.truncate(got);
            parse_header(&head)
        };
        let mut header = read_settled(read)?;
        // The size is read after the header. So every slot that the header counts, and that is written, lies within the
        // size.
        let metadata = file.metadata().map_err(Problem::Io)?;
        let size = metadata.len();
        let on_disk = metadata.blocks().saturating_mul(512);
        let has_holes = size > LONGEST_UNASKED_BYTES && size / 2 > on_disk;
        if has_holes && size / 64 > on_disk {
            header.damaged.push("size: hardly any of the file was ever written");
        }
        let state = match (is_running(file, &header), header.ended) {
            (true, _) => State::Running,
            (false, true) => State::Exited(header.exit_status),
            (false, false) if header.is_dump => State::Dumped,
            (false, false) => State::Killed,
        };
        Ok(Head {
            header,
            size,
            state,
            has_holes,
        })
    }
}

/// Reads a header with `read`. While the process writes a part and then the part's checksum, one read may get the old part and
/// the new checksum. So a header that looks damaged is read again.
pub(super) fn read_settled(mut read: impl FnMut() -> Result<Header, Problem>) -> Result<Header, Problem> {
    let mut found = read()?;
    for _ in 1..MOST_READS {
        if !found.damaged.is_empty() {
            found = read()?;
        }
    }
    Ok(found)
}

/// Whether the process that wrote this file still runs. A lock of the process on the file shows it, in any pid namespace.
/// Without a lock the process is looked for: the file system may have no locks, and a job that opens and closes its own
/// journal loses the lock.
fn is_running(file: &File, header: &Header) -> bool {
    let locked = Owner::Process.finds_locked(file.as_raw_fd(), WHOLE) == Ok(true);
    locked
        || !header.ended
            && header.boot_id != [0; 16]
            && header.boot_id == identity::boot_id()
            && identity::start_ticks(&header.pid.to_string()) == Some(header.start_ticks)
            && has_mapped(header.pid, file)
}

/// Whether a process has mapped the file. After `exec` it has not, although its pid and start time are the same. A process
/// whose mappings cannot be read counts as one that has.
fn has_mapped(pid: u32, file: &File) -> bool {
    let Ok(inode) = file.metadata().map(|metadata| metadata.ino().to_string()) else {
        return true;
    };
    let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps")) else {
        return true;
    };
    maps.split(|&byte| byte == b'\n').any(|line| {
        let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
        fields.nth(4) == Some(inode.as_bytes())
    })
}

/// Reads from `offset` until `buffer` is full or the file ends. Returns the number of bytes read.
fn fill(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
