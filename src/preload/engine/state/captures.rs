//! Open stream captures.
//!
//! While a capture is open, a context must not be synchronised, because that would invalidate the capture. Other calls of
//! ours are made with the thread's capture mode relaxed, so that they invalidate none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::next::{self, CUstream, STREAM_PER_THREAD};
use base::identity::thread_number;
use base::sync::lock;
use policy::UnderWay;

/// `CU_STREAM_CAPTURE_STATUS_NONE`
const NOT_CAPTURING: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: u32 = 2;

/// The longest time that a request without memory waits for the captures of other threads to end.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How often such a request checks whether they have ended.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// A stream handle, with a thread's number if the handle means a different stream in each thread.
pub type StreamKey = (usize, u64);

/// One open capture.
#[derive(Clone, Copy)]
pub struct Capture {
    /// The context of the stream, and the one that owns its memory.
    context: u64,
    owner: u64,
    /// The number of the thread that began it.
    thread: u64,
}

#[derive(Default)]
pub struct Captures {
    open: Mutex<HashMap<StreamKey, Capture>>,
    /// The number of open captures, readable without the lock.
    count: AtomicUsize,
    /// Calls of the driver that must end before a capture begins.
    before_captures: UnderWay,
    /// Whether the job has begun a capture at any time.
    ever_used: AtomicBool,
    /// Whether a capture was open at any time that the library had not seen begin.
    misses_some: AtomicBool,
    /// Whether the job has created a stream at any time.
    pub any_stream_created: AtomicBool,
    /// How many waits beside captures have begun, and how many have ended.
    waits_begun: AtomicU64,
    waits_ended: AtomicU64,
}

pub fn stream_key(stream: usize) -> StreamKey {
    // The handles up to `STREAM_PER_THREAD` do not name one stream for the whole process.
    let is_of_thread = stream <= STREAM_PER_THREAD;
    (stream, if is_of_thread { thread_number() } else { 0 })
}

/// Whether a stream is capturing. `STREAM_PER_THREAD` is that of the calling thread.
pub fn is_capturing(stream: usize) -> bool {
    // SAFETY: the stream is the job's own, and the pointer is to a variable of `told`.
    let ask = |status: &mut u32| unsafe { next::cuStreamIsCapturing(stream as CUstream, status) };
    next::told(NOT_CAPTURING, ask).is_ok_and(|status| status != NOT_CAPTURING)
}

/// Exchanges the calling thread's capture mode with `mode`. In the relaxed mode, its calls do not invalidate captures of
/// other threads.
fn exchange_capture_mode(mode: &mut u32) {
    // SAFETY: the pointer is valid for reading and writing.
    unsafe { next::cuThreadExchangeStreamCaptureMode(mode) };
}

/// The calling thread's capture mode is relaxed until this is dropped, so that its calls of the next layer invalidate no
/// capture, also none that begins meanwhile.
pub struct Relaxed {
    /// The thread's own mode.
    mode: u32,
}

impl Relaxed {
    fn begin() -> Relaxed {
        let mut mode = RELAXED;
        exchange_capture_mode(&mut mode);
        Relaxed { mode }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange_capture_mode(&mut self.mode);
    }
}

/// Runs `work` with this thread's capture mode relaxed.
pub fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    let _relaxed = Relaxed::begin();
    work()
}

/// Lets the calling thread make any call from now on without invalidating a capture. For threads of the library.
pub fn relax_this_thread() {
    exchange_capture_mode(&mut { RELAXED });
}

impl Captures {
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<StreamKey, Capture>) -> T) -> T {
        let mut open = lock(&self.open);
        let result = change(&mut open);
        self.count.store(open.len(), Ordering::SeqCst);
        result
    }

    /// Whether a capture is open.
    #[inline]
    pub fn any_open(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Notes that the job uses captures. Called before the first one begins.
    pub fn mark_used(&self) {
        self.ever_used.store(true, Ordering::SeqCst);
    }

    /// Whether the job has begun a capture at any time, so that another may begin at any moment.
    pub fn ever_used(&self) -> bool {
        self.ever_used.load(Ordering::SeqCst)
    }

    /// A capture is open that the library has not seen begin: through a pointer that never passed the library, or by a
    /// function that it does not know. The event of a context has just broken it (cuda.h 13.0:7013). So none is recorded any
    /// more: a wait allocates and frees a few bytes, which breaks no capture.
    pub fn note_missed(&self) {
        self.mark_used();
        if !self.misses_some.swap(true, Ordering::SeqCst) {
            base::say::warn!(
                "a stream capture was open that the library had not seen begin, and a free has broken it; from now on frees \
                 wait without events, so that later captures survive"
            );
        }
    }

    pub fn misses_some(&self) -> bool {
        self.misses_some.load(Ordering::Relaxed)
    }

    /// Notes a capture of this thread, which begins next. Returns the capture, and false if one of the stream was noted
    /// already. That one stays, because the driver then refuses the new one.
    pub fn begin(&self, stream: usize) -> (Capture, bool) {
        let context = next::context_of_stream(stream);
        let capture = Capture {
            context,
            owner: next::owner_of(context),
            thread: thread_number(),
        };
        (capture, self.note(stream_key(stream), capture))
    }

    fn note(&self, stream: StreamKey, capture: Capture) -> bool {
        let is_new = self.change(|open| match open.entry(stream) {
            Entry::Vacant(place) => {
                place.insert(capture);
                true
            }
            Entry::Occupied(_) => false,
        });
        self.before_captures.wait();
        is_new
    }

    /// The stream captures no longer. Returns its capture if one was open.
    pub fn end(&self, stream: usize) -> Option<Capture> {
        self.change(|open| open.remove(&stream_key(stream)))
    }

    /// Puts back a capture that `end` removed, or puts one in place of another that has ended unseen.
    pub fn restore(&self, stream: usize, capture: Capture) {
        self.change(|open| open.insert(stream_key(stream), capture));
    }

    /// The captures of a context's streams are gone with it.
    pub fn context_gone(&self, context: u64) {
        self.change(|open| open.retain(|_, capture| capture.context != context && capture.owner != context));
    }

    fn thread_has_one(open: &HashMap<StreamKey, Capture>) -> bool {
        let this = thread_number();
        open.values().any(|capture| capture.thread == this)
    }

    /// Whether the calling thread began a capture that is still open.
    #[inline]
    pub fn open_in_this_thread(&self) -> bool {
        self.any_open() && Self::thread_has_one(&lock(&self.open))
    }

    /// Runs `work`, a short call of the driver, if no capture is open. A capture that begins meanwhile waits for its end;
    /// nothing else does.
    pub fn while_none_is_open<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let ticket = {
            let open = lock(&self.open);
            open.is_empty().then(|| self.before_captures.begin())?
        };
        let result = work();
        drop(ticket);
        Some(result)
    }

    /// Runs `work`, a wait beside captures. It has a few bytes of the driver meanwhile, which no account counts.
    pub fn while_waiting<T>(&self, work: impl FnOnce() -> T) -> T {
        self.waits_begun.fetch_add(1, Ordering::SeqCst);
        let result = work();
        self.waits_ended.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// How many waits beside captures have ended.
    pub fn waits_ended(&self) -> u64 {
        self.waits_ended.load(Ordering::SeqCst)
    }

    /// How many waits there were at any time since `ended` of them had ended.
    pub fn waits_since(&self, ended: u64) -> u64 {
        self.waits_begun.load(Ordering::SeqCst).saturating_sub(ended)
    }

    /// Runs `work` once the captures of other threads have ended. Blocks that were freed during a capture can then be used
    /// again. Returns `None` if the job has never begun a capture, if a capture of
    /// this thread is open, or if the others do not end soon.
    pub fn run_between<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if !self.ever_used() || Self::thread_has_one(&lock(&self.open)) {
            return None;
        }
        let start = Instant::now();
        while self.any_open() {
            if start.elapsed() > LONGEST_WAIT {
                return None;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        Some(work())
    }

    /// Relaxes this thread's capture mode until the result is dropped, if a capture is open.
    #[inline]
    pub fn relax(&self) -> Option<Relaxed> {
        self.any_open().then(Relaxed::begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_begins_after_the_call_that_it_would_break_and_no_lock_is_held_meanwhile() {
        let captures = Captures::default();
        let capture = Capture {
            context: 1,
            owner: 1,
            thread: 0,
        };
        let has_begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let done = captures.while_none_is_open(|| {
                assert!(captures.open.try_lock().is_ok());
                assert!(
                    captures.while_none_is_open(|| ()).is_some(),
                    "two calls at the same time"
                );
                scope.spawn(|| {
                    captures.note((1, 0), capture);
                    has_begun.store(true, Ordering::SeqCst);
                });
                while !captures.any_open() {
                    std::thread::yield_now();
                }
                assert!(captures.while_none_is_open(|| ()).is_none());
                has_begun.load(Ordering::SeqCst)
            });
            assert_eq!(done, Some(false));
        });
        assert!(has_begun.into_inner());
    }
}
