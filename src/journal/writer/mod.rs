//! The journal's end inside the job: a file that outlives the process however it dies.
//!
//! The file is mapped shared, so a record is safe from SIGKILL the moment it is stored: the pages are the kernel's, not
//! the process's. Writing one costs a slot, a look at the clock, a 56-byte copy and a Release store; no lock, no
//! allocation, no system call. Address space for the largest size is reserved once and the file grows into it, so
//! nothing ever moves. Growing really allocates blocks: a sparse file on a full disk would kill the job with SIGBUS.
//!
//! Nothing here panics or stops the job. When the file cannot grow, events are counted as lost and growing is tried
//! again once a second, so freed disk space is used again.

mod growth;
mod slots;

use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

pub use super::file::CreateError;
use super::file::{create_file, lock, reserve};
use super::format::{
    Ended, HEADER_SIZE, Header, MAGIC, MAX_ROUTES, RawRecord, RouteEntry, SLOT_SIZE, Slot, UNDER_WAY, VERSION,
};
use base::cuda::MAX_DEVICES;
use base::file::{FileId, page_down, page_up};
use base::identity;
use growth::Growth;
use slots::NO_SLOT;

/// What a journal is created with.
pub struct Options {
    pub directory: PathBuf,
    /// The strategy in force.
    pub strategy: String,
    /// What the user calls this job; may be empty.
    pub job: String,
    /// The file never grows beyond this.
    pub max_bytes: u64,
    /// Arguments of the process, NUL-separated.
    pub command_line: Vec<u8>,
    /// `NAME=value`, NUL-separated.
    pub environment: Vec<u8>,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Written,
    /// Counted, not written; `first` once in a journal's life, so that it can be told once.
    Lost {
        first: bool,
    },
}

/// A place in the file and in time, taken before the record is known.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// `NO_SLOT` where the file could not grow: `commit` tries once more.
    index: u64,
    time_ns: u64,
    tid: u32,
}

/// A journal that this process writes. A forked child must never write to its parent's: see `abandon`.
pub struct Journal {
    base: *mut u8,
    reserved: usize,
    /// Slots below this are backed by blocks on disk and mapped.
    mapped: AtomicU64,
    growth: Mutex<Growth>,
    /// No attempt to grow before this time.
    retry_at_ns: AtomicU64,
    /// Why growing failed last (errno; 0 = size cap).
    reason: AtomicI32,
    told: AtomicBool,
    fd: AtomicI32,
    path: PathBuf,
    file: FileId,
    mono_start_ns: u64,
    /// Differs from every other journal of this process and its ancestors.
    id: u32,
}

struct State<'a> {
    claimed: &'a AtomicU64,
    lost: &'a AtomicU64,
    lost_first_ns: &'a AtomicU64,
    lost_errno: &'a AtomicI32,
    ended: &'a AtomicU32,
    ended_ns: &'a AtomicU64,
    exit_status: &'a AtomicI32,
}

// SAFETY: `base` points at a shared mapping that lives as long as the process; all that changes in it after `create`
// is atomic, or a slot or device entry that exactly one thread owns until it publishes it.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl Journal {
    /// Creates the directory and, in it, a file of this process's own.
    pub fn create(options: &Options) -> Result<Journal, CreateError> {
        let directory = std::path::absolute(&options.directory).unwrap_or_else(|_| options.directory.clone());
        std::fs::create_dir_all(&directory)
            .map_err(|error| CreateError::new("create the directory", &directory, error.raw_os_error()))?;

        let host = identity::host_name();
        let start_ticks = identity::start_ticks("self").unwrap_or(0);
        let (path, fd) = create_file(&directory, &host, start_ticks)?;
        Self::set_up(options, &path, fd, &host, start_ticks).map_err(|(doing, errno)| {
            // SAFETY: the descriptor is ours and used by nobody from here on.
            unsafe { libc::close(fd) };
            let _ = std::fs::remove_file(&path);
            CreateError { doing, path, errno }
        })
    }

    fn set_up(
        options: &Options,
        path: &Path,
        fd: libc::c_int,
        host: &str,
        start_ticks: u64,
    ) -> Result<Journal, (&'static str, i32)> {
        let file = FileId::of(fd).map_err(|errno| ("look at", errno))?;
        lock(fd);

        let smallest = page_up(HEADER_SIZE + SLOT_SIZE);
        let wanted = usize::try_from(options.max_bytes)
            .unwrap_or(usize::MAX)
            .clamp(smallest, 1 << 40);
        let (base, reserved) =
            reserve(page_down(wanted).max(smallest), smallest).ok_or(("reserve address space for", libc::ENOMEM))?;

        static JOURNALS: AtomicU32 = AtomicU32::new(1);
        let journal = Journal {
            base,
            reserved,
            mapped: AtomicU64::new(0),
            growth: Mutex::new(Growth {
                bytes: 0,
                limit: reserved,
            }),
            retry_at_ns: AtomicU64::new(0),
            reason: AtomicI32::new(0),
            told: AtomicBool::new(false),
            fd: AtomicI32::new(fd),
            path: path.to_owned(),
            file,
            mono_start_ns: clock_ns(libc::CLOCK_MONOTONIC),
            id: JOURNALS.fetch_add(1, Relaxed),
        };
        let grown = journal
            .growth
            .lock()
            .map_err(|_| libc::EDEADLK)
            .and_then(|mut growth| journal.extend(&mut growth));
        if let Err(errno) = grown {
            // SAFETY: the reservation is ours and nothing points into it any more.
            unsafe { libc::munmap(base.cast(), reserved) };
            let errno = if errno == 0 { libc::EFBIG } else { errno };
            return Err(("allocate space for", errno));
        }
        journal.write_header(options, host, start_ticks);
        Ok(journal)
    }

    fn write_header(&self, options: &Options, host: &str, start_ticks: u64) {
        let header: *mut Header = self.base.cast();
        // SAFETY: at least a header is mapped and zero; nobody else has this journal yet, and a reader waits for `ready`.
        unsafe {
            (*header).magic = MAGIC;
            (*header).version = VERSION;
            (*header).header_size = HEADER_SIZE as u32;
            (*header).record_size = SLOT_SIZE as u32;
            (*header).pid = libc::getpid() as u32;
            (*header).parent_pid = libc::getppid() as u32;
            (*header).start_ticks = start_ticks;
            (*header).boot_id = identity::boot_id();
            (*header).wall_start_ns = clock_ns(libc::CLOCK_REALTIME);
            (*header).mono_start_ns = self.mono_start_ns;
            fill_text(&mut (*header).strategy, &options.strategy);
            fill_text(&mut (*header).host, host);
            fill_text(&mut (*header).job, &options.job);
            fill(&mut (*header).command_line, &options.command_line);
            fill(&mut (*header).environment, &options.environment);
            (*header).ready.store(1, Release);
        }
    }

    /// Writes a record with the time of this call. `time_ns` and `tid` are filled in here.
    #[inline]
    pub fn write(&self, record: RawRecord) -> Outcome {
        self.commit(self.claim(), record)
    }

    /// Takes the next place in the order. A call that frees memory claims before it frees, or another thread's
    /// allocation of the same address could come first.
    #[inline]
    pub fn claim(&self) -> Claim {
        let (index, tid) = self.take_slot();
        if index != NO_SLOT {
            // From here on the slot stands for an event; a kill before this line leaves it as one kept in hand.
            self.commit_word(index).store((index + 1) | UNDER_WAY, Relaxed);
        }
        // After the slot, so that no slot has a time from before it was handed out: a reader that puts records in order
        // need not look far.
        Claim {
            index,
            time_ns: self.now(),
            tid,
        }
    }

    /// Writes `record` in the place that was claimed by this thread; its time is the claim's.
    #[inline]
    pub fn commit(&self, claim: Claim, mut record: RawRecord) -> Outcome {
        let Claim {
            mut index,
            time_ns,
            tid,
        } = claim;
        if index == NO_SLOT {
            index = self.take_slot().0;
        }
        // Slots that are handed out are always mapped; what else is looked for here is a claim of another journal.
        if index >= self.mapped.load(Acquire) {
            return self.lose(time_ns);
        }
        record.time_ns = time_ns;
        record.tid = tid;
        let offset = HEADER_SIZE + index as usize * SLOT_SIZE;
        // SAFETY: `index < mapped`, so the slot is backed and mapped; the claim makes it this thread's alone.
        unsafe {
            let slot: *mut Slot = self.base.add(offset).cast();
            ptr::write(&raw mut (*slot).record, record);
            (*slot).commit.store(index + 1, Release);
        }
        Outcome::Written
    }

    /// The commit word of a slot that was handed out.
    #[inline]
    fn commit_word(&self, index: u64) -> &AtomicU64 {
        let offset = HEADER_SIZE + index as usize * SLOT_SIZE;
        // SAFETY: only slots below `mapped` are handed out, and what is mapped stays so; the word is only ever used as
        // an atomic.
        unsafe { &(*self.base.add(offset).cast::<Slot>()).commit }
    }

    /// Publishes a device, once for each ordinal; beyond `MAX_DEVICES` they go unnamed.
    pub fn device(&self, ordinal: i32, total_memory: u64, uuid: [u8; 16], name: &str, limit: Option<u64>) {
        let Ok(_one_at_a_time) = self.growth.lock() else { return };
        let header: *mut Header = self.base.cast();
        for place in 0..MAX_DEVICES {
            // SAFETY: the header is mapped, `place` is in range, and the lock makes this thread the only writer; a
            // reader waits for `present`.
            unsafe {
                let entry = &raw mut (*header).devices[place];
                if (*entry).present.load(Acquire) != 0 {
                    if (*entry).ordinal == ordinal {
                        return;
                    }
                    continue;
                }
                (*entry).ordinal = ordinal;
                (*entry).total_memory = total_memory;
                (*entry).uuid = uuid;
                (*header).limits[place].store(limit.unwrap_or(0), Relaxed);
                fill_text(&mut (*entry).name, name);
                (*entry).present.store(1, Release);
                (*header).device_count.fetch_add(1, Release);
            }
            return;
        }
    }

    /// Shows how the job came by our functions so far. Touches nothing but the header's own words: it is called while a
    /// job looks functions up.
    pub fn routes(&self, routes: &[RouteEntry; MAX_ROUTES]) {
        let header: *mut Header = self.base.cast();
        // SAFETY: the header is mapped from `create` on, and these fields are only ever used as atomics.
        let shown = unsafe { &(*header).routes };
        for (shown, counted) in shown.iter().zip(routes) {
            shown.handed_out.store(counted.handed_out.load(Relaxed), Relaxed);
            shown.driver.store(counted.driver.load(Relaxed), Relaxed);
            shown.runtime.store(counted.runtime.load(Relaxed), Relaxed);
        }
    }

    /// The layer below freed an address that we knew nothing of.
    pub fn unknown_free(&self) {
        let header: *mut Header = self.base.cast();
        // SAFETY: as above.
        unsafe { (*header).unknown_frees.fetch_add(1, Relaxed) };
    }

    /// The process exits by itself with `status`.
    pub fn ended(&self, status: i32) {
        let state = self.state();
        state.exit_status.store(status, Relaxed);
        state.ended_ns.store(self.now(), Relaxed);
        state.ended.store(Ended::Exit as u32, Release);
    }

    /// Events that could not be written so far.
    pub fn lost(&self) -> u64 {
        self.state().lost.load(Relaxed)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why events are lost, for the message that goes with the first one.
    pub fn loss_reason(&self) -> String {
        match self.reason.load(Relaxed) {
            0 => format!("its size limit of {} bytes is reached", self.reserved),
            errno => io::Error::from_raw_os_error(errno).to_string(),
        }
    }

    /// Lets go of the parent's journal in a forked child, leaving the file as it is. The parent keeps its lock: record
    /// locks belong to the process, not to the descriptor.
    ///
    /// # Safety
    /// Only in a forked child, while it has one thread, and this journal must not be used afterwards.
    pub unsafe fn abandon(&self) {
        let fd = self.fd.swap(-1, Relaxed);
        // SAFETY: the caller promises that nobody uses the mapping any more; the descriptor is closed only if it still
        // is our file.
        unsafe {
            libc::munmap(self.base.cast(), self.reserved);
            if fd >= 0 && FileId::of(fd) == Ok(self.file) {
                libc::close(fd);
            }
        }
    }

    /// The header's changing fields. No reference to the whole header is ever made: its devices are written in place.
    #[inline]
    fn state(&self) -> State<'_> {
        let header: *mut Header = self.base.cast();
        // SAFETY: the header is mapped from `create` on, and these fields are only ever used as atomics.
        unsafe {
            State {
                claimed: &(*header).claimed,
                lost: &(*header).lost,
                lost_first_ns: &(*header).lost_first_ns,
                lost_errno: &(*header).lost_errno,
                ended: &(*header).ended,
                ended_ns: &(*header).ended_ns,
                exit_status: &(*header).exit_status,
            }
        }
    }

    fn now(&self) -> u64 {
        clock_ns(libc::CLOCK_MONOTONIC).saturating_sub(self.mono_start_ns)
    }

    /// Counts an event that has no slot.
    #[cold]
    fn lose(&self, time_ns: u64) -> Outcome {
        let state = self.state();
        state.lost.fetch_add(1, Relaxed);
        let first = !self.told.swap(true, Relaxed);
        if first {
            state.lost_errno.store(self.reason.load(Relaxed), Relaxed);
            state.lost_first_ns.store(time_ns, Relaxed);
        }
        Outcome::Lost { first }
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// Copies what fits; the rest of the field stays zero.
fn fill(field: &mut [u8], bytes: &[u8]) {
    let count = field.len().min(bytes.len());
    field[..count].copy_from_slice(&bytes[..count]);
}

/// Copies what fits without cutting a character in two.
fn fill_text(field: &mut [u8], text: &str) {
    let mut count = field.len().min(text.len());
    while !text.is_char_boundary(count) {
        count -= 1;
    }
    fill(field, &text.as_bytes()[..count]);
}
