//! The journal's end in the tools: reads what a process wrote, dead or alive, and believes nothing it cannot check.
//!
//! Offsets come from `format`, never from the file; how much there is comes from the file's size. The file is read in
//! blocks, not mapped: cutting a mapped file short would kill the reader. A slot whose commit word does not match is
//! skipped, and counted if an event had begun in it. `events` puts the rest in order.

mod events;
mod follow;

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::format::{
    self, DeviceEntry, Ended, HEADER_SIZE, MAGIC, OLDEST_VERSION, RECORD_SIZE, Record, Route, RouteEntry, VERSION,
};
use base::api::FIRST_RUNTIME_API;
use base::cuda::MAX_DEVICES;
use base::identity;
pub use events::Events;
pub use follow::Follower;

/// Why a file cannot be read as a journal.
#[derive(Debug)]
pub struct OpenError {
    pub path: PathBuf,
    pub problem: Problem,
}

#[derive(Debug)]
pub enum Problem {
    Io(io::Error),
    NotAFile,
    /// It does not begin like a journal.
    NotAJournal,
    OtherVersion(u32),
    /// It says it is of a version we know, but is laid out differently.
    OtherLayout,
    /// It begins like a journal and ends before its header does.
    Short(u64),
    /// Its process has not finished the header: it is just starting, or died doing so.
    NotReady,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.problem {
            Problem::Io(error) => write!(f, "cannot be read: {error}"),
            Problem::NotAFile => write!(f, "not a file: give a .{} file or a folder of them", format::EXTENSION),
            Problem::NotAJournal => write!(f, "not a vramshim journal: give a .{} file", format::EXTENSION),
            Problem::OtherVersion(version) => write!(
                f,
                "written in journal format {version}, this program reads formats {OLDEST_VERSION} to {VERSION}: use the \
                 vramshim that goes with the library that wrote it"
            ),
            Problem::OtherLayout => write!(f, "header is damaged (impossible sizes): copy the file again"),
            Problem::Short(size) => {
                write!(
                    f,
                    "cut short ({size} bytes, the header alone has {HEADER_SIZE}): copy the file again"
                )
            }
            Problem::NotReady => write!(
                f,
                "no header yet: its process is just starting, or ended before it began"
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            Problem::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// What a journal says about its process. Text that is not UTF-8 is shown as near as can be.
#[derive(Clone, Debug)]
pub struct Header {
    pub pid: u32,
    pub parent_pid: u32,
    pub start_ticks: u64,
    pub boot_id: [u8; 16],
    /// CLOCK_REALTIME at the start, nanoseconds.
    pub wall_start_ns: u64,
    /// CLOCK_MONOTONIC at the same moment.
    pub mono_start_ns: u64,
    pub strategy: String,
    pub host: String,
    pub job: String,
    pub command_line: Vec<String>,
    /// `(name, value)`
    pub environment: Vec<(String, String)>,
    pub devices: Vec<Device>,
    /// How the job came by our functions, in the order of `format::Route`.
    pub routes: Vec<HandedOut>,
    /// Frees that succeeded of addresses that were allocated past the library.
    pub unknown_frees: u64,
    pub lost_first_ns: u64,
    pub lost_errno: i32,
    ended: bool,
    exit_status: i32,
    ended_ns: u64,
    claimed: u64,
    lost: u64,
}

#[derive(Clone, Debug)]
pub struct Device {
    pub ordinal: i32,
    pub total_memory: u64,
    /// Bytes that the process may have of it, where there is a limit.
    pub limit: Option<u64>,
    pub uuid: [u8; 16],
    pub name: String,
}

/// What one way of looking up handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOut {
    pub times: u64,
    /// As in `format::RouteEntry`.
    driver: u64,
    runtime: u64,
}

impl HandedOut {
    /// Whether it handed out a function whose calls are recorded under this number.
    pub fn has(&self, api: u16) -> bool {
        let bit = |word: u64, number: u16| number < 64 && word >> number & 1 == 1;
        match api.checked_sub(FIRST_RUNTIME_API) {
            Some(number) => bit(self.runtime, number),
            None => bit(self.driver, api),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Exited(i32),
    /// It said nothing and is gone: a signal, `_exit`, or the machine went down.
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub index: u64,
    pub record: Record,
}

pub struct Journal {
    file: File,
    path: PathBuf,
    size: u64,
    version: u32,
    header: Header,
    state: State,
}

impl Journal {
    /// Opens a journal. Not for the process that writes it: closing any descriptor of a file gives up the process's
    /// own lock on it.
    pub fn open(path: &Path) -> Result<Journal, OpenError> {
        Self::read_head(path).map_err(|problem| OpenError {
            path: path.to_owned(),
            problem,
        })
    }

    fn read_head(path: &Path) -> Result<Journal, Problem> {
        // Asked before opening: opening a device may do something.
        if !std::fs::metadata(path).map_err(Problem::Io)?.is_file() {
            return Err(Problem::NotAFile);
        }
        // Not to wait for the writer of a FIFO that took the file's place meanwhile; means nothing to a file.
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(Problem::Io)?;
        let Head {
            version,
            header,
            size,
            state,
        } = Head::of(&file)?;
        Ok(Journal {
            file,
            path: path.to_owned(),
            size,
            version,
            header,
            state,
        })
    }

    /// Reads the head again: what the process has said meanwhile, and whether it still runs.
    pub fn refresh(&mut self) -> Result<(), OpenError> {
        let head = Head::of(&self.file).map_err(|problem| self.error(problem))?;
        self.header = head.header;
        self.size = head.size;
        self.state = head.state;
        Ok(())
    }

    fn error(&self, problem: Problem) -> OpenError {
        OpenError {
            path: self.path.clone(),
            problem,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// As it was when the journal was opened, or refreshed.
    pub fn state(&self) -> State {
        self.state
    }

    /// Bytes in the file, for a progress bar.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Nanoseconds from start to exit, if the process said when it ended.
    pub fn ended_ns(&self) -> Option<u64> {
        self.header.ended.then_some(self.header.ended_ns)
    }

    /// Events that happened and are not in the file: those the writer counted, and slots it gave out that the file
    /// ends before. (While it runs, a slot beyond the end may only be waiting for the file to grow. Of a file that was
    /// cut short this is the most that may be missing: a few of the slots may only have been kept in hand.)
    pub fn lost(&self) -> u64 {
        let missing = match self.state {
            State::Running => 0,
            _ => self.header.claimed.saturating_sub(self.slots()),
        };
        self.header.lost.saturating_add(missing)
    }

    /// The events in the order they took effect in.
    pub fn events(&self) -> Events<'_> {
        Events::new(self)
    }

    /// Whole slots in the file.
    fn slots(&self) -> u64 {
        self.size.saturating_sub(HEADER_SIZE as u64) / RECORD_SIZE as u64
    }
}

/// What is read before any record, at one moment.
struct Head {
    version: u32,
    header: Header,
    size: u64,
    state: State,
}

impl Head {
    fn of(file: &File) -> Result<Head, Problem> {
        let mut head = vec![0; HEADER_SIZE];
        let got = fill(file, &mut head, 0).map_err(Problem::Io)?;
        head.truncate(got);
        let (version, header) = parse_header(&head)?;
        // The size is asked after the header, so that every slot claimed in it and since grown into is there.
        let size = file.metadata().map_err(Problem::Io)?.len();
        let state = match (is_running(file, &header), header.ended) {
            (true, _) => State::Running,
            (false, true) => State::Exited(header.exit_status),
            (false, false) => State::Killed,
        };
        Ok(Head {
            version,
            header,
            size,
            state,
        })
    }
}

/// The file's version, and what it says about its process.
fn parse_header(head: &[u8]) -> Result<(u32, Header), Problem> {
    use format::Header as H;
    let begins = head.len().min(MAGIC.len());
    let untouched = head.iter().all(|&byte| byte == 0);
    if untouched {
        return Err(Problem::NotReady);
    }
    if head[..begins] != MAGIC[..begins] {
        return Err(Problem::NotAJournal);
    }
    if head.len() < HEADER_SIZE {
        return Err(Problem::Short(head.len() as u64));
    }
    let u32_of = |offset| u32_at(head, offset);
    let u64_of = |offset| u64_at(head, offset);
    let version = u32_of(offset_of!(H, version));
    if u32_of(offset_of!(H, ready)) != 1 && version <= VERSION {
        return Err(Problem::NotReady);
    }
    if !(OLDEST_VERSION..=VERSION).contains(&version) {
        return Err(Problem::OtherVersion(version));
    }
    let sizes = (u32_of(offset_of!(H, header_size)), u32_of(offset_of!(H, record_size)));
    if sizes != (HEADER_SIZE as u32, RECORD_SIZE as u32) {
        return Err(Problem::OtherLayout);
    }
    let devices = (0..MAX_DEVICES)
        .map(|place| {
            let entry = &head[offset_of!(H, devices) + place * size_of::<DeviceEntry>()..][..size_of::<DeviceEntry>()];
            (entry, u64_of(offset_of!(H, limits) + place * size_of::<u64>()))
        })
        .filter(|(entry, _)| u32_at(entry, offset_of!(DeviceEntry, present)) == 1)
        .map(|(entry, limit)| Device {
            ordinal: u32_at(entry, offset_of!(DeviceEntry, ordinal)) as i32,
            total_memory: u64_at(entry, offset_of!(DeviceEntry, total_memory)),
            limit: (limit > 0).then_some(limit),
            uuid: bytes_at(entry, offset_of!(DeviceEntry, uuid)),
            name: text(&bytes_at::<64>(entry, offset_of!(DeviceEntry, name))),
        })
        .collect();
    let routes = Route::ALL.map(|route| {
        let entry = offset_of!(H, routes) + route as usize * size_of::<RouteEntry>();
        HandedOut {
            times: u64_of(entry + offset_of!(RouteEntry, handed_out)),
            driver: u64_of(entry + offset_of!(RouteEntry, driver)),
            runtime: u64_of(entry + offset_of!(RouteEntry, runtime)),
        }
    });
    let header = Header {
        pid: u32_of(offset_of!(H, pid)),
        parent_pid: u32_of(offset_of!(H, parent_pid)),
        start_ticks: u64_of(offset_of!(H, start_ticks)),
        boot_id: bytes_at(head, offset_of!(H, boot_id)),
        wall_start_ns: u64_of(offset_of!(H, wall_start_ns)),
        mono_start_ns: u64_of(offset_of!(H, mono_start_ns)),
        strategy: text(&bytes_at::<32>(head, offset_of!(H, strategy))),
        host: text(&bytes_at::<64>(head, offset_of!(H, host))),
        job: text(&bytes_at::<128>(head, offset_of!(H, job))),
        command_line: texts(&bytes_at::<4096>(head, offset_of!(H, command_line))),
        environment: texts(&bytes_at::<4096>(head, offset_of!(H, environment)))
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        devices,
        routes: routes.to_vec(),
        unknown_frees: u64_of(offset_of!(H, unknown_frees)),
        lost_first_ns: u64_of(offset_of!(H, lost_first_ns)),
        lost_errno: u32_of(offset_of!(H, lost_errno)) as i32,
        ended: u32_of(offset_of!(H, ended)) == Ended::Exit as u32,
        exit_status: u32_of(offset_of!(H, exit_status)) as i32,
        ended_ns: u64_of(offset_of!(H, ended_ns)),
        claimed: u64_of(offset_of!(H, claimed)),
        lost: u64_of(offset_of!(H, lost)),
    };
    Ok((version, header))
}

fn parse_record(bytes: &[u8]) -> Record {
    Record {
        time_ns: u64_at(bytes, offset_of!(Record, time_ns)),
        address: u64_at(bytes, offset_of!(Record, address)),
        size: u64_at(bytes, offset_of!(Record, size)),
        allocated: u64_at(bytes, offset_of!(Record, allocated)),
        detail: u64_at(bytes, offset_of!(Record, detail)),
        tid: u32_at(bytes, offset_of!(Record, tid)),
        result: u32_at(bytes, offset_of!(Record, result)) as i32,
        api: u16::from_le_bytes(bytes_at(bytes, offset_of!(Record, api))),
        device: i16::from_le_bytes(bytes_at(bytes, offset_of!(Record, device))),
        kind: bytes[offset_of!(Record, kind)],
        class: bytes[offset_of!(Record, class)],
        flags: bytes[offset_of!(Record, flags)],
        stream: bytes[offset_of!(Record, stream)],
    }
}

/// Whether the process that wrote this file still holds its lock on it. Works from any pid namespace. Where the
/// filesystem knows no locks, the process is looked for by pid and start time instead.
fn is_running(file: &File, header: &Header) -> bool {
    // SAFETY: flock is plain data.
    let mut conflict: libc::flock = unsafe { std::mem::zeroed() };
    conflict.l_type = libc::F_WRLCK as libc::c_short;
    conflict.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open and the struct outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut conflict) } == 0 {
        return conflict.l_type != libc::F_UNLCK as libc::c_short;
    }
    !header.ended
        && header.boot_id != [0; 16]
        && header.boot_id == identity::boot_id()
        && identity::start_ticks(&header.pid.to_string()) == Some(header.start_ticks)
}

/// Reads until `buffer` is full or the file ends.
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

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    std::array::from_fn(|place| bytes[offset + place])
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}

/// Text up to its padding.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// NUL-separated texts up to the padding. An empty argument in the middle is kept.
fn texts(field: &[u8]) -> Vec<String> {
    let end = field.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    if end == 0 {
        return Vec::new();
    }
    field[..end]
        .split(|&byte| byte == 0)
        .map(|item| String::from_utf8_lossy(item).into_owned())
        .collect()
}

#[cfg(test)]
mod tests;
