//! Pages of the file that a thread of the library touches before the writers get there.
//!
//! The first store into a page of the mapped file costs a page fault, and the kernel zeroes the page. That is about as
//! much, spread over the page's 64 records, as all else that a record costs. So the job's threads leave it to a thread of
//! the library, if there is one: at every `ASK_SLOTS`th slot they wake it, and it touches the pages ahead
//! (`MADV_POPULATE_WRITE`). If it comes too late, or if the kernel is older than Linux 5.14, the writers touch the pages.
//!
//! Only pages that have blocks on disk are touched, and their bytes stay 0. So neither the file's size nor what a reader
//! finds in it changes. The cost is memory of the page cache: at most a quarter of what is written, and at most
//! `MOST_AHEAD_BYTES`.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

use super::mapping::Mapping;
use crate::format::{HEADER_SIZE, SLOT_SIZE};
use base::file::{errno, page_down, page_up};

/// How often the thread is asked. 256 KiB of records take a thread at least half a millisecond.
const ASK_SLOTS: u64 = 4096;
const MOST_AHEAD_BYTES: usize = 4 << 20;
/// What one system call touches. That takes some 30 microseconds, in which the job's threads cannot map memory.
const PIECE_BYTES: usize = 64 << 10;
/// `MADV_POPULATE_WRITE` (asm-generic/mman-common.h of Linux 5.14)
const POPULATE_WRITE: libc::c_int = 23;

/// It has cache lines of its own, because writers read what stands beside it for each record.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Ahead {
    /// The word on which the thread sleeps; null if there is no thread.
    sleeps_on: AtomicPtr<AtomicU32>,
    asked: AtomicBool,
    /// The pages before this offset were touched, by the thread or by writers.
    touched: AtomicUsize,
}

impl Ahead {
    /// A writer has taken this slot.
    #[inline]
    pub(super) fn slot_is_taken(&self, index: u64) {
        if index.is_multiple_of(ASK_SLOTS) {
            self.ask();
        }
    }

    #[cold]
    fn ask(&self) {
        let word = self.sleeps_on.load(Acquire);
        if !word.is_null() {
            self.asked.store(true, Release);
            // SAFETY: FUTEX_WAKE compares addresses, and does not read the word, which lives as long as the process.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
        }
    }

    /// The calling thread serves the writers from now on. It sleeps on `word`, and calls `touch` when it wakes up.
    pub(super) fn serve(&self, word: &'static AtomicU32) {
        self.sleeps_on.store(ptr::from_ref(word).cast_mut(), Release);
    }

    /// Touches pages, if a writer has asked for it. Many writers can be faster than the thread, which has other work too:
    /// they ask again soon.
    pub(super) fn touch(&self, mapping: &Mapping) {
        if !self.asked.swap(false, Acquire) {
            return;
        }
        for _ in 0..MOST_AHEAD_BYTES / PIECE_BYTES {
            let written = HEADER_SIZE + mapping.claimed() as usize * SLOT_SIZE;
            let mapped = page_down(HEADER_SIZE + mapping.mapped() as usize * SLOT_SIZE);
            let end = mapped.min(page_up(written + (written / 4).min(MOST_AHEAD_BYTES)));
            let from = self.touched.load(Relaxed).max(page_down(written));
            if from >= end {
                return;
            }
            let bytes = PIECE_BYTES.min(end - from);
            // SAFETY: the range lies in the mapped part of the file, which stays mapped. The call changes no byte of it.
            if unsafe { libc::madvise(mapping.at(from), bytes, POPULATE_WRITE) } != 0 {
                if errno() == libc::EINVAL {
                    // The kernel does not know the call.
                    self.sleeps_on.store(ptr::null_mut(), Release);
                }
                return;
            }
            self.touched.store(from + bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::{About, Journal, Outcome};
    use super::*;
    use crate::format::{Event, MarkKind};
    use crate::reader;
    use base::api::Api;
    use base::cuda::HOST_DEVICE;

    fn create(folder: &std::path::Path) -> Journal {
        Journal::create(folder, 64 << 20, About::default()).unwrap()
    }

    fn write(journal: &Journal, records: u64) {
        for text in 0..records {
            let kind = MarkKind::Instant;
            let record = Event::Mark { text, kind }.encode(Api::Policy, HOST_DEVICE);
            assert_eq!(journal.write(record), Outcome::Written);
        }
    }

    /// Slots that a thread has in reserve if it writes alone.
    const LONE_SLOTS: usize = 8;

    fn touched(journal: &Journal) -> usize {
        journal.ahead().touched.load(Relaxed)
    }

    #[test]
    fn a_thread_that_serves_touches_pages_ahead_and_changes_nothing_in_the_file() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        const RECORDS: u64 = 3 * ASK_SLOTS + 5;
        let folder = tempfile::tempdir().unwrap();
        let journal = create(folder.path());
        write(&journal, ASK_SLOTS);
        journal.touch_pages();
        assert_eq!(touched(&journal), 0, "nobody serves");

        journal.serve_writers(&WORD);
        write(&journal, RECORDS - ASK_SLOTS);
        let size = std::fs::metadata(journal.path()).unwrap().len();
        journal.touch_pages();
        if journal.ahead().sleeps_on.load(Relaxed).is_null() {
            return; // The kernel is older than 5.14.
        }
        let written = HEADER_SIZE + RECORDS as usize * SLOT_SIZE;
        let most = page_up(written + written / 4 + LONE_SLOTS * SLOT_SIZE) + PIECE_BYTES;
        assert!((written + written / 5..=most).contains(&touched(&journal)));
        assert_eq!(std::fs::metadata(journal.path()).unwrap().len(), size);
        let read = reader::Journal::open(journal.path()).unwrap();
        let mut records = read.records();
        assert_eq!(records.by_ref().map(Result::unwrap).count() as u64, RECORDS);
        assert_eq!((records.unfinished(), records.damaged()), (0, 0));

        let before = touched(&journal);
        journal.touch_pages();
        assert_eq!(touched(&journal), before, "nobody has asked again");
    }

    #[test]
    fn writers_wake_the_thread_that_serves() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        const LONGEST: Duration = Duration::from_secs(120);
        let folder = tempfile::tempdir().unwrap();
        let journal = create(folder.path());
        journal.serve_writers(&WORD);
        let woken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let time = libc::timespec {
                    tv_sec: 2 * LONGEST.as_secs() as libc::time_t,
                    tv_nsec: 0,
                };
                // SAFETY: the word and the time outlive the call.
                unsafe { libc::syscall(libc::SYS_futex, WORD.as_ptr(), libc::FUTEX_WAIT, 0, &time) };
                woken.store(true, Release);
            });
            let start = Instant::now();
            // The thread may fall asleep late.
            while !woken.load(Acquire) && start.elapsed() < LONGEST {
                write(&journal, 64);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(woken.load(Acquire), "the writer has not woken the thread");
        });
    }
}
