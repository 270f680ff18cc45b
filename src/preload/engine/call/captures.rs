//! Stream captures, and the streams that are captured.

use crate::engine::Call;
use crate::engine::state::captures::is_capturing;
use crate::engine::state::location::Location;
use base::cuda::CudaResult;

impl Call {
    pub fn capture_begins(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let captures = &self.engine.state.captures;
        let context = Location::current().map_or(0, |location| location.context);
        captures.mark_used();
        // Noted before the call, because no free may synchronise the context from the moment that the capture is open. If
        // the stream is capturing already, the driver refuses the call, and the stream goes on capturing.
        let is_new = captures.begin(stream, context);
        let result = ask();
        if result.is_err() && is_new {
            captures.end(stream);
        }
        result
    }

    /// A capture ends whatever the result, unless the stream goes on capturing, which `status` tells.
    pub fn capture_ends(
        &self,
        stream: usize,
        status: impl Fn(*mut u32) -> CudaResult,
        ask: impl FnOnce() -> CudaResult,
    ) -> CudaResult {
        let result = ask();
        if result.is_ok() || !is_capturing(status) {
            self.engine.state.captures.end(stream);
            if !self.engine.state.captures.any_open() {
                self.engine.sharing.captures_over();
                self.engine.pools.captures_over();
            }
        }
        result
    }

    pub fn stream_created(&self, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        self.engine.state.captures.stream_created();
        ask()
    }

    /// The capture of a stream goes with the stream. It leaves the list before the call, because right after it another
    /// stream may have the same handle.
    pub fn stream_destroyed(&self, stream: usize, ask: impl FnOnce() -> CudaResult) -> CudaResult {
        let captures = &self.engine.state.captures;
        self.engine.state.live_streams.stream_closes(stream);
        let ended = captures.any_open().then(|| captures.end(stream)).flatten();
        let result = ask();
        if let Some(capture) = ended
            && result.is_err()
        {
            captures.restore(stream, capture);
        }
        result
    }
}
