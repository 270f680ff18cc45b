//! The streams on which events can be recorded: those that the job has named to `vramshim_torch_*` and not destroyed.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// The identity of the default stream, which is never destroyed.
const DEFAULT_STREAM: u64 = 0;

#[derive(Clone, Copy)]
struct LiveStream {
    handle: usize,
    context: u64,
}

#[derive(Default)]
pub struct LiveStreams {
    /// By identity. No stream leaves the list while an event is recorded on it.
    known: RwLock<HashMap<u64, LiveStream>>,
}

impl LiveStreams {
    /// Notes a stream that the job uses now. `context_of` finds its context.
    pub fn note(&self, identity: u64, handle: usize, context_of: impl FnOnce() -> u64) {
        if identity == DEFAULT_STREAM || self.read().contains_key(&identity) {
            return;
        }
        let stream = LiveStream {
            handle,
            context: context_of(),
        };
        self.change(|known| known.insert(identity, stream));
    }

    /// Runs `work` with the handle of a stream. `None` if the stream was destroyed.
    pub fn with<T>(&self, identity: u64, work: impl FnOnce(usize) -> T) -> Option<T> {
        let known = self.read();
        let handle = match identity {
            DEFAULT_STREAM => 0,
            _ => known.get(&identity)?.handle,
        };
        Some(work(handle))
    }

    /// The stream with this handle is about to be destroyed.
    pub fn stream_closes(&self, handle: usize) {
        if self.read().values().any(|stream| stream.handle == handle) {
            self.change(|known| known.retain(|_, stream| stream.handle != handle));
        }
    }

    pub fn context_gone(&self, context: u64) {
        self.change(|known| known.retain(|_, stream| stream.context != context));
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<u64, LiveStream>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u64, LiveStream>) -> T) -> T {
        change(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }
}
