//! One journal that this process writes: writes the header, and claims and commits records.

use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use super::ahead::Ahead;
use super::header::{About, write_about, write_device, write_end, write_software};
use super::mapping::Mapping;
use super::ring::{self, Before};
use super::slots::{self, NO_SLOT};
use crate::copy::{self, Dumped};
use crate::file::{CreateError, create_file};
use crate::format::header::pair_check;
use crate::format::{Device, RawRecord, UNDER_WAY, check, commit_word};
use base::cuda::MAX_DEVICES;
use base::identity;

/// Whether a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Written,
    /// A record was counted as lost: an older one, whose place this record took, or this one. `first` is true for the
    /// first lost record of a journal, so that the caller can report the loss once.
    Lost {
        first: bool,
    },
}

/// A slot and a time for a record that is committed later.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The slot. `NO_SLOT` if the file could not grow; `commit` then tries once more to take a slot.
    index: u64,
    time_ns: u64,
    tid: u32,
}

/// A journal that this process writes. A forked child must never write to its parent's journal.
pub struct Journal {
    mapping: Mapping,
    ahead: Ahead,
    /// Whether a record was lost already.
    told: AtomicBool,
    /// The number of failures that the ring was given.
    kept: AtomicU64,
    /// A number that no other journal of this process or of its ancestors has.
    id: u32,
}

impl Journal {
    /// Creates the directory if it is missing, and a journal file for this process in the directory, which never grows
    /// beyond `max_bytes`. `about` says what the job is; what is known of the process is filled in.
    pub fn create(directory: &Path, max_bytes: u64, about: About) -> Result<Journal, CreateError> {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        std::fs::create_dir_all(&directory).map_err(|error| CreateError {
            doing: "create the directory",
            path: directory.clone(),
            errno: error.raw_os_error().unwrap_or(libc::EINVAL),
        })?;
        let host = identity::host_name();
        let start_ticks = identity::start_ticks("self").unwrap_or(0);
        let (path, fd) = create_file(&directory, &host, start_ticks)?;
        let mapping = Mapping::create(&path, fd, max_bytes).map_err(|(doing, errno)| {
            // SAFETY: the descriptor was opened above, and is not used any more.
            unsafe { libc::close(fd) };
            let _ = std::fs::remove_file(&path);
            CreateError { doing, path, errno }
        })?;
        let about = About {
            pid: std::process::id(),
            parent_pid: std::os::unix::process::parent_id(),
            start_ticks,
            boot_id: identity::boot_id(),
            wall_start_ns: mapping.wall_start_ns,
            mono_start_ns: mapping.mono_start_ns,
            pid_namespace: identity::pid_namespace(),
            host_pid: identity::outermost_pid(),
            user: Some(identity::effective_user()),
            cgroup: identity::cgroup(),
            host,
            ..about
        };
        let header = mapping.header();
        // SAFETY: the header is mapped and zero. No other thread has this journal yet, and readers wait for `ready`.
        unsafe {
            write_about(header, &about);
            (*header).ready.store(1, Release);
        }
        static JOURNALS: AtomicU32 = AtomicU32::new(1);
        Ok(Journal {
            mapping,
            ahead: Ahead::default(),
            told: AtomicBool::new(false),
            kept: AtomicU64::new(0),
            id: JOURNALS.fetch_add(1, Relaxed),
        })
    }

    /// Lets the group of the file read it: in a folder with the set-group-ID bit, the group of the folder.
    pub fn let_group_read(&self) -> Result<(), CreateError> {
        self.mapping.let_group_read().map_err(|errno| CreateError {
            doing: "let the group read",
            path: self.path().to_owned(),
            errno,
        })
    }

    /// Writes a record that has the time of this call.
    #[inline]
    pub fn write(&self, record: RawRecord) -> Outcome {
        self.commit(self.claim(), record)
    }

    /// Takes a slot and the present time for a record that is committed later. A caller that frees memory must claim
    /// before the free. Otherwise the next allocation of the address, on another thread, could get an earlier time.
    #[inline(always)]
    pub fn claim(&self) -> Claim {
        let (index, tid) = slots::take(&self.mapping, self.id);
        self.begin(index, tid)
    }

    /// Marks the slot as taken, and takes the present time.
    #[inline(always)]
    fn begin(&self, index: u64, tid: u32) -> Claim {
        if index != NO_SLOT {
            // This store marks the slot: its event has begun. If the process is killed earlier, the slot looks unused.
            self.commit_word(index).store((index + 1) | UNDER_WAY, Relaxed);
            self.ahead.slot_is_taken(index);
        }
        // The clock is read after the slot was taken and marked. Readers rely on this order to sort the records.
        Claim {
            index,
            time_ns: self.mapping.now(),
            tid,
        }
    }

    /// Writes `record` into the slot that this thread claimed, with the time of the claim.
    #[inline(always)]
    pub fn commit(&self, mut claim: Claim, record: RawRecord) -> Outcome {
        if claim.index == NO_SLOT {
            claim.index = slots::take(&self.mapping, self.id).0;
        }
        self.store(claim, record)
    }

    /// Stores a record in the slot of the claim, or in the ring if there is no slot.
    #[inline(always)]
    fn store(&self, claim: Claim, record: RawRecord) -> Outcome {
        let Claim { index, time_ns, tid } = claim;
        let record = record.at(time_ns, tid);
        // A slot that this journal handed out is always mapped. The check catches `NO_SLOT`, and some claims of other
        // journals.
        if index >= self.mapping.mapped() {
            return self.put_in_ring(record);
        }
        // SAFETY: `index` is below `mapped`, so the slot is mapped. Only the thread that claimed the slot writes it. A
        // record is words. Each word is stored by itself.
        unsafe {
            let slot = self.mapping.slot(index);
            let words = (&raw mut (*slot).record).cast::<u64>();
            for (place, word) in record.0.into_iter().enumerate() {
                ptr::write_volatile(words.add(place), word);
            }
            (*slot).commit.store(commit_word(index, &record), Release);
        }
        Outcome::Written
    }

    /// Writes a record at the end of the process, which may come in a signal handler. It waits for no lock and allocates
    /// nothing: if the file would have to grow for the record, the record is left out.
    pub fn write_last(&self, record: RawRecord) {
        let (index, tid) = slots::take_mapped(&self.mapping);
        if index != NO_SLOT || self.mapping.has_ring() {
            self.store(self.begin(index, tid), record);
        }
    }

    /// Writes a record for which there is no slot in place of an older one.
    #[cold]
    fn put_in_ring(&self, record: RawRecord) -> Outcome {
        match ring::put(&self.mapping, &self.kept, record) {
            Some(Before::Nothing) => Outcome::Written,
            Some(Before::Lost(time_ns)) => self.lose(time_ns),
            None => self.lose(record.time_ns()),
        }
    }

    #[cfg(test)]
    pub(super) fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    /// The commit word of a slot that was taken.
    #[inline]
    fn commit_word(&self, index: u64) -> &AtomicU64 {
        // SAFETY: only slots below `mapped` are taken, and they stay mapped. The word is only used as an atomic.
        unsafe { &(*self.mapping.slot(index)).commit }
    }

    /// Writes a device into the header. Later calls for the same ordinal do nothing. After `MAX_DEVICES` devices, no
    /// further device is written.
    pub fn device(&self, device: &Device) {
        self.mapping.exclusively(|| {
            let header = self.mapping.header();
            for place in 0..MAX_DEVICES {
                // SAFETY: the header is mapped, `place` is in range, and this thread is the only writer.
                unsafe {
                    let entry = &raw const (*header).devices[place];
                    if (*entry).present.load(Acquire) == 0 {
                        return write_device(header, place, device);
                    }
                    if (*entry).ordinal == device.ordinal {
                        return;
                    }
                }
            }
        });
    }

    /// Counts a successful free of an address that the library did not know.
    pub fn unknown_free(&self) {
        let header = self.mapping.header();
        // SAFETY: the header is mapped as long as the process lives, and this field is only used as an atomic.
        count(unsafe { &(*header).unknown_frees });
    }

    /// Notes that the process is alive now. A killed process lived at least until the last such note.
    pub fn alive(&self) {
        let header = self.mapping.header();
        let now = check::pack(self.mapping.now() / 1_000_000);
        // SAFETY: the header is mapped as long as the process lives, and this field is only used as an atomic.
        unsafe { (*header).alive_ms.store(now, Relaxed) };
    }

    /// The calling thread touches pages of the file before writers get there, from now on. It sleeps on `word`, and calls
    /// `touch_pages` when it wakes up. The thread is to live as long as the process.
    pub fn serve_writers(&self, word: &'static AtomicU32) {
        self.ahead.serve(word);
    }

    /// Touches pages ahead of the writers, if they have asked for it since the last call.
    pub fn touch_pages(&self) {
        self.ahead.touch(&self.mapping);
    }

    /// Writes `name=value` of the software that the job uses, NUL-separated, into the header. Only the first call does
    /// so.
    pub fn software(&self, text: &[u8]) {
        self.mapping.exclusively(|| {
            // SAFETY: the header is mapped, and this thread is the only writer of these fields.
            unsafe { write_software(self.mapping.header(), text) };
        });
    }

    /// Notes in the header that the process exits with `status`.
    pub fn ended(&self, status: i32) {
        // SAFETY: the header is mapped from `create` on.
        unsafe { write_end(self.mapping.header(), status, self.mapping.now()) };
    }

    /// The number of events that could not be written so far.
    pub fn lost(&self) -> u64 {
        // SAFETY: the header is mapped from `create` on, and this field is only ever used as an atomic.
        let lost = unsafe { (*self.mapping.header()).lost.load(Relaxed) };
        check::unpack(lost).unwrap_or_default()
    }

    pub fn path(&self) -> &Path {
        self.mapping.path()
    }

    /// Nanoseconds since the journal was created.
    pub fn now_ns(&self) -> u64 {
        self.mapping.now()
    }

    /// Whether a dump to `to` would replace this journal or a file beside it.
    pub fn dump_would_replace(&self, to: &Path) -> io::Result<bool> {
        copy::would_replace(&self.mapping, self.path(), to)
    }

    /// Writes a copy of the journal as it is now to `to`, with the files beside it. The errors are those of `copy::dump`.
    pub fn dump(&self, to: &Path) -> io::Result<Dumped> {
        // The journal's file is not opened: closing any descriptor of it would drop the lock that shows that the process
        // runs.
        copy::dump(&self.mapping, self.path(), to, self.now_ns())
    }

    /// Why events are lost, for the message about the first lost event.
    pub fn loss_reason(&self) -> String {
        match self.mapping.reason() {
            0 => format!("its size limit of {} bytes is reached", self.mapping.reserved),
            errno => io::Error::from_raw_os_error(errno).to_string(),
        }
    }

    /// Counts an event as lost. `time_ns` is the time of the event.
    #[cold]
    fn lose(&self, time_ns: u64) -> Outcome {
        let first = !self.told.swap(true, Relaxed);
        let header = self.mapping.header();
        // SAFETY: the header is mapped from `create` on, and these fields are only ever used as atomics.
        unsafe {
            count(&(*header).lost);
            if first {
                let why = self.mapping.reason();
                (*header).lost_errno.store(why, Relaxed);
                (*header).lost_first_ns.store(time_ns, Relaxed);
                (*header).loss_check.store(pair_check(why, time_ns), Release);
            }
        }
        Outcome::Lost { first }
    }
}

/// Adds one to the value of a packed word.
fn count(word: &AtomicU64) {
    let more = |word| Some(check::pack(check::unpack(word).unwrap_or_else(|value| value) + 1));
    let _ = word.fetch_update(Relaxed, Relaxed, more);
}
