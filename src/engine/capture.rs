//! Open stream captures. While one is open a policy must not synchronise, nor give memory back: that would break it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::pools::Pool;
use super::{Call, Engine, Place, lock};
use crate::real::SUCCESS;

/// `CU_STREAM_PER_THREAD`, and below it the other handles that do not name one stream for the whole process.
const LAST_SPECIAL: usize = 2;
const NOT_CAPTURING: u32 = 0;

/// A stream; where its handle means another one in each thread, with the thread.
type Name = (usize, u32);

#[derive(Default)]
pub struct Captures {
    /// With the context that was current when the capture began.
    open: Mutex<HashMap<Name, u64>>,
    count: AtomicUsize,
    /// Whether the job ever made a stream of its own.
    pub streams_made: AtomicBool,
}

fn name(stream: usize) -> Name {
    // SAFETY: has no preconditions.
    let thread = || unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    (stream, if stream <= LAST_SPECIAL { thread() } else { 0 })
}

impl Captures {
    fn change<T>(&self, change: impl FnOnce(&mut HashMap<Name, u64>) -> T) -> T {
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
        self.change(|open| open.retain(|_, its| *its != context));
    }
}

impl Call {
    pub fn capture_begins(&self, stream: usize, ask: impl FnOnce() -> i32) -> i32 {
        // Before the call: no policy may synchronise from the moment the capture is open. A stream that is capturing
        // already is refused below, and goes on capturing.
        let captures = &self.engine.captures;
        let context = Place::current().map_or(0, |place| place.context);
        let new = captures.change(|open| open.insert(name(stream), context).is_none());
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
        let mut now = NOT_CAPTURING;
        let goes_on = result != SUCCESS && status(&mut now) == SUCCESS && now != NOT_CAPTURING;
        if !goes_on {
            self.engine.captures.change(|open| open.remove(&name(stream)));
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
        if let Some(context) = before
            && result != SUCCESS
        {
            captures.change(|open| open.insert(name(stream), context));
        }
        result
    }
}

impl Engine {
    pub(super) fn capturing(&self) -> bool {
        self.captures.any()
    }

    /// What a policy began before a capture was noted, a synchronisation or a release, is done by the end of this.
    fn wait_for_policies(&self) {
        let roots: Vec<&'static Pool> = self.pools.contexts().values().copied().collect();
        for pool in roots.into_iter().flat_map(Pool::family) {
            drop(lock(&pool.policy));
        }
    }
}
