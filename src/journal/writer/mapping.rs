//! The file of a journal, mapped into the job. To grow the file, the library first allocates blocks on disk, and then
//! maps them into the address space that was reserved at the start.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};
use std::sync::{Mutex, OnceLock};

use crate::copy::Source;
use crate::file::{KeptFile, lock_file, reserve};
use crate::format::{HEADER_SIZE, Header, SLOT_SIZE, Slot, check, ring_slots};
use base::cancellation::Uncancelled;
use base::file::{FileId, allocate, errno, file_size_limit, page_down, page_up};
use base::sync::lock;

/// The first step by which the file grows. Later steps double the file, but are at most `LARGEST_STEP_BYTES`.
const FIRST_STEP_BYTES: usize = 1 << 20;
const LARGEST_STEP_BYTES: usize = 64 << 20;
/// If the disk has no room for a step, smaller steps are tried, down to this size.
const SMALLEST_STEP_BYTES: usize = 64 << 10;
/// How long no thread tries to grow the file after a failure.
pub(super) const RETRY_NS: u64 = 1_000_000_000;

/// A journal's file in the memory of the process that writes it.
pub(super) struct Mapping {
    base: *mut u8,
    /// Bytes of reserved address space. The file never grows beyond this size.
    pub(super) reserved: usize,
    /// Slots below this have blocks on disk, are mapped, and do not belong to the ring, except those of a ring that is
    /// in use.
    mapped: AtomicU64,
    growth: Mutex<Growth>,
    /// The ring, once the file could not grow; set by the thread that holds `growth`.
    ring: OnceLock<Ring>,
    /// No thread tries to grow the file before this time.
    retry_at_ns: AtomicU64,
    /// Why the last growth failed: an errno, or 0 if the size limit was reached.
    reason: AtomicI32,
    file: KeptFile,
    /// CLOCK_MONOTONIC when the journal was created.
    pub(super) mono_start_ns: u64,
    /// CLOCK_REALTIME at the same moment. Readers tell the time of an event from both.
    pub(super) wall_start_ns: u64,
}

/// The part of the file that takes new records while the file cannot grow.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    pub(super) first: u64,
    pub(super) slots: u64,
}

struct Growth {
    /// Bytes of the file that are mapped.
    bytes: usize,
    /// The file never grows beyond this many bytes.
    limit: usize,
}

// SAFETY: `base` points at a shared mapping that lives as long as the process. After `create`, only atomics, slots and
// device entries in it change. One thread alone writes a slot or entry until it publishes it with an atomic store.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Locks the file `fd`, reserves address space, and allocates and maps the file's first bytes, which are 0. The
    /// error is what failed, and an errno.
    pub(super) fn create(path: &Path, fd: libc::c_int, max_bytes: u64) -> Result<Mapping, (&'static str, i32)> {
        let file = KeptFile::new(path.to_owned(), fd).map_err(|errno| ("look at", errno))?;
        lock_file(fd);
        let smallest = page_up(HEADER_SIZE + SLOT_SIZE);
        let wanted = usize::try_from(max_bytes)
            .unwrap_or(usize::MAX)
            .clamp(smallest, 1 << 40);
        let (base, reserved) =
            reserve(page_down(wanted).max(smallest), smallest).ok_or(("reserve address space for", libc::ENOMEM))?;
        let mapping = Mapping {
            base,
            reserved,
            mapped: AtomicU64::new(0),
            growth: Mutex::new(Growth {
                bytes: 0,
                limit: reserved,
            }),
            ring: OnceLock::new(),
            retry_at_ns: AtomicU64::new(0),
            reason: AtomicI32::new(0),
            file,
            mono_start_ns: clock_ns(libc::CLOCK_MONOTONIC),
            wall_start_ns: clock_ns(libc::CLOCK_REALTIME),
        };
        let grown = mapping.extend(&mut lock(&mapping.growth));
        if let Err(errno) = grown {
            // SAFETY: the reservation was made above, and nothing points into it any more.
            unsafe { libc::munmap(base.cast(), reserved) };
            let errno = if errno == 0 { libc::EFBIG } else { errno };
            return Err(("allocate space for", errno));
        }
        Ok(mapping)
    }

    /// Gives the file mode 0640. The descriptor must be that of the file still.
    pub(super) fn let_group_read(&self) -> Result<(), i32> {
        // SAFETY: fchmod takes numbers only; a bad descriptor is an error, not a fault.
        match unsafe { libc::fchmod(self.file.last_known(), 0o640) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }

    /// The header, valid for reading and writing as long as the process lives. The caller must not make a reference to
    /// the whole header, because device entries are written in place. References to atomic fields are allowed.
    #[inline]
    pub(super) fn header(&self) -> *mut Header {
        self.base.cast()
    }

    /// A pointer to the slot `index`, which must be below `mapped`.
    #[inline]
    pub(super) fn slot(&self, index: u64) -> *mut Slot {
        self.base.wrapping_add(HEADER_SIZE + index as usize * SLOT_SIZE).cast()
    }

    /// The byte of the file at `offset`, which must be mapped.
    pub(super) fn at(&self, offset: usize) -> *mut libc::c_void {
        self.base.wrapping_add(offset).cast()
    }

    /// The number of slots that threads have taken.
    pub(super) fn claimed(&self) -> u64 {
        // SAFETY: the header is mapped as long as the process lives, and this field is only ever used as an atomic.
        unsafe { (*self.header()).claimed.load(Relaxed) }
    }

    /// Slots below this number are mapped, and stay mapped.
    #[inline]
    pub(super) fn mapped(&self) -> u64 {
        self.mapped.load(Acquire)
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Why the last growth failed: an errno, or 0 if the size limit was reached.
    pub(super) fn reason(&self) -> i32 {
        self.reason.load(Relaxed)
    }

    pub(super) fn now(&self) -> u64 {
        clock_ns(libc::CLOCK_MONOTONIC).saturating_sub(self.mono_start_ns)
    }

    /// Runs `change` while no other thread grows the file or runs a `change`.
    pub(super) fn exclusively(&self, change: impl FnOnce()) {
        let _one_at_a_time = lock(&self.growth);
        change();
    }

    /// Grows the file until slot `index` is mapped, or waits until another thread has done so. Returns false if the
    /// file cannot grow for now.
    #[cold]
    pub(super) fn reach(&self, index: u64, time_ns: u64) -> bool {
        if time_ns < self.retry_at_ns.load(Relaxed) {
            return false;
        }
        let _uncancelled = Uncancelled::begin();
        let mut growth = lock(&self.growth);
        while self.mapped.load(Acquire) <= index {
            if time_ns < self.retry_at_ns.load(Relaxed) {
                // The thread that held the lock before has just failed to grow the file.
                return false;
            }
            if let Err(errno) = self.extend(&mut growth) {
                self.reason.store(errno, Relaxed);
                self.retry_at_ns
                    .store(if errno == 0 { u64::MAX } else { self.now() + RETRY_NS }, Relaxed);
                return false;
            }
        }
        true
    }

    /// Grows the file and the mapping by one step. The error is an errno, or 0 if the size limit is reached.
    fn extend(&self, growth: &mut Growth) -> Result<(), i32> {
        let old = growth.bytes;
        let mut step = old.clamp(FIRST_STEP_BYTES, LARGEST_STEP_BYTES).min(growth.limit - old);
        if step == 0 {
            return Err(0);
        }
        // Growth beyond RLIMIT_FSIZE would raise SIGXFSZ, which kills the job.
        step = step.min(page_down(file_size_limit().saturating_sub(old)));
        if step == 0 || (old == 0 && step < HEADER_SIZE + SLOT_SIZE) {
            return Err(libc::EFBIG);
        }
        let fd = self.file.descriptor(libc::O_RDWR, lock_file)?;
        while let Err(errno) = allocate(fd, old, step) {
            // EINTR: a profiler's timer signals can interrupt every long fallocate. A shorter step may succeed.
            let less_may_succeed = matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EINTR);
            if !less_may_succeed || step <= SMALLEST_STEP_BYTES {
                return Err(errno);
            }
            step = page_down(step / 2).max(page_up(SMALLEST_STEP_BYTES));
        }
        // SAFETY: [old, old + step) lies inside the reservation, and no part of it was mapped or handed out before.
        let mapped = unsafe {
            let (at, flags) = (self.base.add(old).cast(), libc::MAP_SHARED | libc::MAP_FIXED);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(at, step, protection, flags, fd, old as libc::off_t)
        };
        if mapped == libc::MAP_FAILED {
            // The failed call may have unmapped that part of the reserved address space, and other memory may be mapped
            // there now. So the file never grows again.
            growth.limit = old;
            return Err(errno());
        }
        growth.bytes = old + step;
        let slots = ((growth.bytes - HEADER_SIZE) / SLOT_SIZE) as u64;
        let header = self.header();
        // SAFETY: the header is mapped as long as the process lives, and these fields are only ever used as atomics.
        let (in_file, claimed) = unsafe { (&(*header).slots, &(*header).claimed) };
        in_file.store(check::pack(slots), Relaxed);
        let usable = match self.ring.get() {
            // The ring keeps its place, and the slots behind it are used next. All slots before it are taken.
            Some(ring) => {
                claimed.fetch_max(ring.first + ring.slots, Relaxed);
                slots
            }
            None => slots - ring_slots(slots),
        };
        self.mapped.store(usable, Release);
        Ok(())
    }

    /// The ring, which begins with the first call: the slots behind those that threads may claim. `None` if the file is
    /// too small for a ring.
    pub(super) fn ring(&self) -> Option<Ring> {
        self.ring.get().copied().or_else(|| self.begin_ring())
    }

    /// Whether the ring is in use, so that `ring` takes no lock.
    pub(super) fn has_ring(&self) -> bool {
        self.ring.get().is_some()
    }

    #[cold]
    fn begin_ring(&self) -> Option<Ring> {
        let growth = lock(&self.growth);
        let first = self.mapped();
        let slots = ((growth.bytes - HEADER_SIZE) / SLOT_SIZE) as u64;
        if self.ring.get().is_none() && first < slots {
            let slots = slots - first;
            let header = self.header();
            // SAFETY: the header is mapped as long as the process lives, and these fields are only ever used as
            // atomics.
            unsafe {
                (*header).ring_slots.store(check::pack(slots), Relaxed);
                (*header).ring_first.store(check::pack(first), Release);
            }
            let _ = self.ring.set(Ring { first, slots });
        }
        self.ring.get().copied()
    }
}

/// What is mapped. Every word is read at once and in the order of addresses, so the record behind a commit word is the one
/// that the word was stored for. Only in the ring it may be a later one.
impl Source for Mapping {
    fn size(&self) -> io::Result<u64> {
        Ok(lock(&self.growth).bytes as u64)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        for (word, place) in buffer.chunks_exact_mut(8).zip((offset as usize..).step_by(8)) {
            // SAFETY: the caller stays within the size, which is mapped as long as the process lives, and the words of a
            // mapping are aligned. Threads that write plain words meanwhile store whole words of eight bytes or less; a
            // mixed word fails its checksum.
            let value = unsafe { AtomicU64::from_ptr(self.base.add(place).cast()) }.load(Acquire);
            word.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    fn file(&self) -> io::Result<FileId> {
        Ok(self.file.file)
    }
}

pub(super) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}
