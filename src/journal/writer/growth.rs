//! How the file grows: blocks on disk first, then mapped into the address space that was reserved for them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::*;

use super::super::format::{HEADER_SIZE, SLOT_SIZE};
use super::Journal;
use crate::file::lock;
use base::file::{FileId, allocate, errno, file_size_limit, open, page_down, page_up};

/// The first growth; later ones double the file up to `LARGEST_STEP` at a time.
const FIRST_STEP: usize = 1 << 20;
const LARGEST_STEP: usize = 64 << 20;
/// What is still worth taking from a disk that is nearly full.
const SMALLEST_STEP: usize = 64 << 10;
/// How long a failed growth is left alone.
const RETRY_NS: u64 = 1_000_000_000;

pub struct Growth {
    /// Bytes of the file that are mapped.
    pub bytes: usize,
    /// Bytes at which growth ends for good.
    pub limit: usize,
}

impl Journal {
    /// Makes slot `index` writable. Waits for a growth that is under way; false if the file cannot grow for now.
    #[cold]
    pub(super) fn reach(&self, index: u64, time_ns: u64) -> bool {
        if time_ns < self.retry_at_ns.load(Relaxed) {
            return false;
        }
        let Ok(mut growth) = self.growth.lock() else {
            return false;
        };
        while self.mapped.load(Acquire) <= index {
            if time_ns < self.retry_at_ns.load(Relaxed) {
                return false; // the thread before us just failed
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

    /// Grows the file and the mapping by one step. Error: an errno, or 0 at the size cap.
    pub(super) fn extend(&self, growth: &mut Growth) -> Result<(), i32> {
        let old = growth.bytes;
        let mut step = old.clamp(FIRST_STEP, LARGEST_STEP).min(growth.limit - old);
        if step == 0 {
            return Err(0);
        }
        // Growing beyond RLIMIT_FSIZE would raise SIGXFSZ, which kills.
        step = step.min(page_down(file_size_limit().saturating_sub(old)));
        if step == 0 || (old == 0 && step < HEADER_SIZE + SLOT_SIZE) {
            return Err(libc::EFBIG);
        }
        let fd = self.own_descriptor()?;
        while let Err(errno) = allocate(fd, old, step) {
            // Interrupted: a profiler's timer can make every long fallocate fail, so ask for less then, too.
            let less_may_do = matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EINTR);
            if !less_may_do || step <= SMALLEST_STEP {
                return Err(errno);
            }
            step = page_down(step / 2).max(page_up(SMALLEST_STEP));
        }
        // SAFETY: [old, old + step) lies inside the reservation, above everything that is in use.
        let mapped = unsafe {
            libc::mmap(
                self.base.add(old).cast(),
                step,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                fd,
                old as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            // The kernel may have dropped the reservation there, and somebody else may live there now: never again.
            growth.limit = old;
            return Err(errno());
        }
        growth.bytes = old + step;
        self.mapped
            .store(((growth.bytes - HEADER_SIZE) / SLOT_SIZE) as u64, Release);
        Ok(())
    }

    /// Our descriptor, if it still is ours: a job that closes descriptors by number may have closed it, and something
    /// else may have the number now. Then the file is opened and locked again.
    fn own_descriptor(&self) -> Result<libc::c_int, i32> {
        let fd = self.fd.load(Relaxed);
        if FileId::of(fd) == Ok(self.file) {
            return Ok(fd);
        }
        let path = CString::new(self.path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
        let fd = open(&path, libc::O_RDWR)?;
        if FileId::of(fd) != Ok(self.file) {
            // SAFETY: just opened here.
            unsafe { libc::close(fd) };
            return Err(libc::ESTALE);
        }
        lock(fd);
        self.fd.store(fd, Relaxed);
        Ok(fd)
    }
}
