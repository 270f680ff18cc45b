//! Copies the journal of a process that goes on writing: a *dump*.
//!
//! A dump has the events up to one moment, and all of them. So no free is in it without its allocation, whatever threads
//! do meanwhile. Records that are later are left out. An event that is under way at the moment is waited for, but not for
//! long. The job can make a dump from its memory, and another process from the file.

use std::ffi::OsString;
use std::io;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::format::{
    EXTENSION, HEADER_SIZE, Header, MAGIC, SLOT_SIZE, STACKS_EXTENSION, SlotState, TENSORS_EXTENSION, VERSION, check,
    u64_at,
};
use crate::reader;
use base::descriptor::{Descriptor, result};
use base::file::{FileId, errno, file_size_limit, write_all};

/// Slots that are read at once.
const BLOCK_SLOTS: usize = 4096;
/// How often, and how long apart, the records of events under way are looked for again.
const LOOKS: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Where a journal is read: the memory of the process that writes it, or its file.
pub trait Source {
    fn size(&self) -> io::Result<u64>;

    /// Copies as many bytes as the buffer has, from `offset` on. The source has them, by its size. Both numbers are
    /// multiples of 8.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    fn file(&self) -> io::Result<FileId>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dumped {
    pub records: u64,
    /// Bytes of the copy of the journal.
    pub bytes: u64,
}

/// Whether a dump may have this name: it must end in `.vraj`.
pub fn may_be_named(to: &Path) -> bool {
    to.extension().is_some_and(|extension| extension == EXTENSION) && to.file_stem().is_some()
}

/// Writes a copy of a journal to `to`, which must end in `.vraj`: the events up to `now_ns` after the journal's begin.
/// Files beside the journal at `beside` are copied too. A file of this name is replaced once the copy is whole.
///
/// `InvalidInput` if the name has another ending, `InvalidData` if the source is no journal of this version,
/// `ResourceBusy` if `to` is the file of the journal itself, or of what is beside it: replaced, it would lose all later
/// events. All other errors are those of the files.
pub fn dump(source: &dyn Source, beside: &Path, to: &Path, now_ns: u64) -> io::Result<Dumped> {
    if !may_be_named(to) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    if would_replace(source, beside, to)? {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    replaced(to, |sink| {
        let dumped = Copy { source, sink, now_ns }.whole()?;
        // A stack has its line before a record has its number, so these files are copied after the records.
        for extension in BESIDE {
            copy_lines(&beside.with_extension(extension), &to.with_extension(extension))?;
        }
        Ok(dumped)
    })
}

/// Writes a file that takes the place of `to` once it is whole.
fn replaced<T>(to: &Path, write: impl FnOnce(&Sink) -> io::Result<T>) -> io::Result<T> {
    let mut part: OsString = to.as_os_str().to_owned();
    part.push(format!(".{}-{}.part", std::process::id(), base::identity::thread_id()));
    let part = PathBuf::from(part);
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
    let sink = Sink(open(&part, flags)?);
    let done = write(&sink).and_then(|written| std::fs::rename(&part, to).map(|()| written));
    if done.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    done
}

/// Whether a dump to `to` would replace the journal itself or a file beside it. A caller that marks the moment of a dump
/// asks first, so that no mark stands for a copy that is refused.
pub fn would_replace(source: &dyn Source, beside: &Path, to: &Path) -> io::Result<bool> {
    Ok(names(to, source.file()?) || BESIDE.iter().any(|extension| is_same(beside, to, extension)))
}

/// The extensions of the files beside a journal.
const BESIDE: [&str; 2] = [STACKS_EXTENSION, TENSORS_EXTENSION];

/// Whether a path stands for this file, also by a link.
fn names(path: &Path, file: FileId) -> bool {
    std::fs::metadata(path).is_ok_and(|found| FileId::from(&found) == file)
}

/// Whether the file with this extension beside one journal is the one beside the other.
fn is_same(one: &Path, other: &Path, extension: &str) -> bool {
    let found = std::fs::metadata(one.with_extension(extension));
    found.is_ok_and(|found| names(&other.with_extension(extension), FileId::from(&found)))
}

struct Copy<'a> {
    source: &'a dyn Source,
    sink: &'a Sink,
    now_ns: u64,
}

impl Copy<'_> {
    fn whole(self) -> io::Result<Dumped> {
        let size = self.source.size()?;
        let head = self.head(size)?;
        let has_ring = u64_at(&head, offset_of!(Header, ring_first)) != 0;
        let slots = (size - HEADER_SIZE as u64) / SLOT_SIZE as u64;
        let (mut records, mut used, mut open) = (0, 0, Vec::new());
        let mut buffer = vec![0; BLOCK_SLOTS * SLOT_SIZE];
        let mut first = 0;
        while first < slots {
            let count = (slots - first).min(BLOCK_SLOTS as u64);
            let block = &mut buffer[..count as usize * SLOT_SIZE];
            self.source.read(block, place(first))?;
            for (index, slot) in (first..).zip(block.chunks_exact_mut(SLOT_SIZE)) {
                match SlotState::read(index, slot) {
                    SlotState::Unused => continue,
                    SlotState::Committed(record) if record.time_ns() <= self.now_ns => records += 1,
                    SlotState::Committed(_) => {
                        slot.fill(0);
                        continue;
                    }
                    SlotState::UnderWay | SlotState::Damaged => open.push(index),
                }
                used = index + 1;
            }
            // A copy has no holes, so blocks without a record are written too. At the end they are the room that the journal
            // has for more, and are cut off.
            self.sink.write(block, place(first))?;
            first += count;
        }
        records += self.look_again(open)?;
        let slots = if has_ring { slots } else { used };
        self.sink.cut(place(slots))?;
        self.finish(size, slots)?;
        Ok(Dumped {
            records,
            bytes: place(slots),
        })
    }

    fn head(&self, size: u64) -> io::Result<Vec<u8>> {
        let mut head = vec![0; HEADER_SIZE];
        if size < HEADER_SIZE as u64 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        self.source.read(&mut head, 0)?;
        let is_ours = head[..MAGIC.len()] == MAGIC && head[offset_of!(Header, version)..][..4] == VERSION.to_le_bytes();
        is_ours
            .then_some(head)
            .ok_or(io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Looks for the records of these slots until they are complete. Returns how many there are now.
    fn look_again(&self, mut open: Vec<u64>) -> io::Result<u64> {
        let (mut slot, mut records) = ([0; SLOT_SIZE], 0);
        for _ in 0..LOOKS {
            let mut left = Vec::new();
            for &index in &open {
                self.source.read(&mut slot, place(index))?;
                match SlotState::read(index, &slot) {
                    SlotState::Committed(record) if record.time_ns() <= self.now_ns => records += 1,
                    SlotState::Committed(_) | SlotState::Unused => slot.fill(0),
                    SlotState::UnderWay | SlotState::Damaged => {
                        left.push(index);
                        continue;
                    }
                }
                self.sink.write(&slot, place(index))?;
            }
            open = left;
            if open.is_empty() {
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Ok(records)
    }

    /// Writes the header, which makes the copy a journal. It counts the slots of the copy.
    fn finish(&self, size: u64, slots: u64) -> io::Result<()> {
        let mut head = self.head(size)?;
        let mut set = |offset: usize, word: u64| head[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        set(offset_of!(Header, claimed), slots);
        set(offset_of!(Header, slots), check::pack(slots));
        let now_ms = check::pack((self.now_ns / 1_000_000).max(1));
        set(offset_of!(Header, alive_ms), now_ms);
        set(offset_of!(Header, dumped_ms), now_ms);
        self.sink.write(&head, 0)
    }
}

fn place(slot: u64) -> u64 {
    HEADER_SIZE as u64 + slot * SLOT_SIZE as u64
}

/// A new file that this process writes. The job may close any descriptor meanwhile, and use its number.
struct Sink(Descriptor);

impl Sink {
    fn write(&self, mut bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        // A write beyond RLIMIT_FSIZE would raise SIGXFSZ, which kills the job.
        if end > file_size_limit() as u64 {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let write = |left: &[u8]| {
            let at = end - left.len() as u64;
            // The job may have closed the descriptor, and -1 is none.
            let fd = self.0.number().unwrap_or(-1);
            // SAFETY: the bytes are readable.
            unsafe { libc::pwrite(fd, left.as_ptr().cast(), left.len(), at as libc::off_t) }
        };
        write_all(&mut bytes, write).map_err(io::Error::from_raw_os_error)
    }

    fn cut(&self, size: u64) -> io::Result<()> {
        // SAFETY: the call takes numbers only.
        result(unsafe { libc::ftruncate(self.0.open_number()?, size as libc::off_t) }).map(drop)
    }
}

fn open(path: &Path, flags: libc::c_int) -> io::Result<Descriptor> {
    Descriptor::open(path, flags).map_err(io::Error::from_raw_os_error)
}

/// Copies the whole lines of a file that only grows, if there is one that may belong to the journal. A file of the name `to`
/// goes in any case.
fn copy_lines(from: &Path, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    // No pipe of this name is opened, as that could wait. No link is followed.
    let found = std::fs::symlink_metadata(from);
    if !found.is_ok_and(|file| file.is_file() && reader::may_lie_beside(file.uid(), from)) {
        return match std::fs::remove_file(to) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => Err(problem),
            _ => Ok(()),
        };
    }
    let source = open(from, libc::O_RDONLY | libc::O_NONBLOCK)?;
    let opened = base::file::status(source.open_number()?).map_err(io::Error::from_raw_os_error)?;
    if !reader::may_lie_beside(opened.st_uid, from) {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    replaced(to, |sink| lines(&source, sink))
}

fn lines(source: &Descriptor, sink: &Sink) -> io::Result<()> {
    let (mut buffer, mut at, mut end_of_lines) = (vec![0; 256 << 10], 0, 0);
    loop {
        let fd = source.open_number()?;
        // SAFETY: the buffer is writable.
        let got = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), at as libc::off_t) };
        match got {
            0 => return sink.cut(end_of_lines),
            1.. => {
                let bytes = &buffer[..got as usize];
                sink.write(bytes, at)?;
                if let Some(last) = bytes.iter().rposition(|&byte| byte == b'\n') {
                    end_of_lines = at + last as u64 + 1;
                }
                at += got as u64;
            }
            _ if errno() == libc::EINTR => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

/// The file of a journal that another process writes.
pub struct InFile(pub std::fs::File);

impl Source for InFile {
    fn size(&self) -> io::Result<u64> {
        self.0.metadata().map(|file| file.len())
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, buffer, offset)
    }

    fn file(&self) -> io::Result<FileId> {
        self.0.metadata().map(|file| FileId::from(&file))
    }
}
