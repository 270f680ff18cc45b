//! Stream captures, and the streams that are captured.

use std::sync::atomic::Ordering::Relaxed;

use crate::engine::state::captures::is_capturing;
use crate::engine::{Call, Engine};
use base::cuda::CudaResult;

impl Call {
    pub fn capture_begins(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let captures = &self.engine.state.captures;
        captures.mark_used();
        self.engine.state.live_streams.note_before_capture(stream, captures);
        // Noted before the call, because no free may synchronise the context from the moment that the capture is open. If
        // the stream is capturing already, the driver refuses the call, and the stream goes on capturing.
        let (capture, is_new) = captures.begin(stream);
        let result = ask();
        match result {
            Ok(()) => {
                if !is_new {
                    captures.restore(stream, capture);
                }
                self.pool_gets_stream(stream);
            }
            Err(_) => {
                if is_new {
                    captures.end(stream);
                }
                self.capture_failed(None);
            }
        }
        result
    }

    /// A capture ends whatever the result, unless the stream goes on capturing. There is no graph if the capture was
    /// invalidated (cuda.h: "a NULL graph will be returned").
    pub fn capture_ends(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let result = ask();
        if result.is_ok() || !is_capturing(stream) {
            self.engine.state.captures.end(stream);
            self.engine.capture_ended();
            if result.is_err() {
                self.capture_failed(Some(stream));
            }
        }
        result
    }

    pub fn stream_created(&self, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        self.engine.state.captures.any_stream_created.store(true, Relaxed);
        ask()
    }

    /// The capture of a stream goes with the stream. It leaves the list before the call, because right after it another
    /// stream may have the same handle.
    pub fn stream_destroyed(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let captures = &self.engine.state.captures;
        self.engine.state.live_streams.stream_closes(stream);
        self.engine.stream_ordered.stream_closes(stream);
        let ended = captures.any_open().then(|| captures.end(stream)).flatten();
        let result = ask();
        if let Some(capture) = ended
            && result.is_err()
        {
            captures.restore(stream, capture);
        } else if ended.is_some() {
            self.engine.capture_ended();
        }
        result
    }
}

impl Engine {
    /// A capture has left the list. If it was the last one, what had to wait for the end of captures is done now.
    pub(super) fn capture_ended(&self) {
        if !self.state.captures.any_open() {
            self.unmap_closed();
            self.pools.captures_over();
        }
    }
}
