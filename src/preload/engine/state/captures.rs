//! Open stream captures. While one is open a policy must not synchronise, nor give memory back: that would break it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::engine::pools::Pool;
use crate::engine::{Call, Engine, Place, lock};
use crate::next::{self, STREAM_PER_THREAD, SUCCESS};
use base::identity::thread_id;

/// `CU_STREAM_CAPTURE_STATUS_NONE`
const NOT_CAPTURING: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub const RELAXED: u32 = 2;

/// How long a request without memory waits for the captures of other threads to end, and looks whether they did.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_micros(100);

/// A stream; where its handle means another one in each thread, with the thread.
type Name = (usize, u32);

struct Capture {
    /// The context that was current when it began.
    context: u64,
    thread: u32,
}

#[derive(Default)]
pub struct Captures {
    open: Mutex<HashMap<Name, Capture>>,
    count: AtomicUsize,
    /// Whether there ever was one.
    ever: AtomicBool,
    /// Held by whoever waits for the open ones to end: none begins meanwhile.
    none_begins: Mutex<()>,
    /// Whether the job ever made a stream of its own.
    pub streams_made: AtomicBool,
}

fn name(stream: usize) -> Name {
    // Handles up to this one do not name one stream for the whole process.
    (stream, if stream <= STREAM_PER_THREAD { thread_id() } else { 0 })
}

/// Whether a stream captures, by the driver's own answer.
pub fn captures(status: impl Fn(*mut u32) -> i32) -> bool {
    let mut now = NOT_CAPTURING;
    status(&mut now) == SUCCESS && now != NOT_CAPTURING
}

impl Captures {
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<Name, Capture>) -> T) -> T {
        let mut open = lock(&self.open);
        let result = change(&mut open);
        self.count.store(open.len(), Ordering::SeqCst);
        result
    }

    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// What the streams of a context were capturing is gone with it.
    pub fn context_gone(&self, context: u64) {
        self.change(|open| open.retain(|_, its| its.context != context));
    }
}

impl Call {
    pub fn capture_begins(&self, stream: usize, ask: impl FnOnce() -> i32) -> i32 {
        // Before the call: no policy may synchronise from the moment the capture is open. A stream that is capturing
        // already is refused below, and goes on capturing.
        let captures = &self.engine.captures;
        let this = Capture {
            context: Place::current().map_or(0, |place| place.context),
            thread: thread_id(),
        };
        captures.ever.store(true, Ordering::Relaxed);
        if !captures.any() {
            self.engine.clean_for_capture(this.context);
        }
        let turn = lock(&captures.none_begins);
        let new = captures.change(|open| open.insert(name(stream), this).is_none());
        drop(turn);
        self.engine.wait_for_policies();
        let result = ask();
        if result != SUCCESS && new {
            captures.change(|open| open.remove(&name(stream)));
        }
        result
    }

    /// A capture ends whatever the result, unless the stream goes on capturing, which `status` tells.
    pub fn capture_ends(&self, stream: usize, status: impl Fn(*mut u32) -> i32, ask: impl FnOnce() -> i32) -> i32 {
        let result = ask();
        if result == SUCCESS || !captures(status) {
            self.engine.captures.change(|open| open.remove(&name(stream)));
            if !self.engine.capturing() {
                self.engine.sharing.capture_over();
            }
        }
        result
    }

    pub fn stream_made(&self, ask: impl FnOnce() -> i32) -> i32 {
        self.engine.captures.streams_made.store(true, Ordering::Relaxed);
        ask()
    }

    /// With a stream goes its capture. Off the list before the call: a moment after, another one may have the handle.
    pub fn stream_destroyed(&self, stream: usize, ask: impl FnOnce() -> i32) -> i32 {
        let captures = &self.engine.captures;
        let before = captures
            .any()
            .then(|| captures.change(|open| open.remove(&name(stream))))
            .flatten();
        let result = ask();
        if let Some(its) = before
            && result != SUCCESS
        {
            captures.change(|open| open.insert(name(stream), its));
        }
        result
    }
}

impl Engine {
    pub(crate) fn capturing(&self) -> bool {
        self.captures.any()
    }

    /// Runs `work` once other threads' captures have ended, and while none begins: then what was freed can be used again.
    /// `None` where none ever was, one of this thread is open, or they do not end soon.
    pub(crate) fn between_captures<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let captures = &self.captures;
        let this = thread_id();
        if !captures.ever.load(Ordering::Relaxed) || lock(&captures.open).values().any(|one| one.thread == this) {
            return None;
        }
        let _turn = lock(&captures.none_begins);
        let begin = Instant::now();
        while captures.any() {
            if begin.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(LOOK);
        }
        Some(work())
    }

    /// What is free now can be used while a capture is open, when nobody may wait for the work that used it.
    fn clean_for_capture(&self, context: u64) {
        let root = self.pools.contexts().get(&context).copied();
        for pool in root.into_iter().flat_map(Pool::family) {
            // Where it fails, what is clean is there all the same.
            let _ = self.with_policy(pool, |policy, memory| policy.synchronise(memory));
        }
    }

    /// Whether this thread began a capture that is open.
    pub(crate) fn captures_here(&self) -> bool {
        let this = thread_id();
        self.capturing() && lock(&self.captures.open).values().any(|one| one.thread == this)
    }

    /// Runs `work`, whose calls of the layer below are none that a capture should see.
    pub(crate) fn beside_captures<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.capturing() {
            return work();
        }
        let mut mode = RELAXED;
        // SAFETY: this frame's own value, which holds the thread's mode in between.
        unsafe { next::cuThreadExchangeStreamCaptureMode(&mut mode) };
        let result = work();
        // SAFETY: as above.
        unsafe { next::cuThreadExchangeStreamCaptureMode(&mut mode) };
        result
    }

    /// What a policy began before a capture was noted, a synchronisation or a release, is done by the end of this.
    fn wait_for_policies(&self) {
        let roots: Vec<&'static Pool> = self.pools.contexts().values().copied().collect();
        for pool in roots.into_iter().flat_map(Pool::family) {
            drop(lock(&pool.policy));
        }
    }
}
