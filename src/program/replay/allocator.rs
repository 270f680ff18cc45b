//! The trait `Allocator`: a policy, a model of a framework's allocator, or the driver.

use base::cuda::DriverError;

/// Serves the requests of a trace.
pub trait Allocator {
    /// Returns a handle for `size` bytes. `stream` is the stream of the request; `None` if the trace names no stream.
    fn allocate(&mut self, size: u64, stream: Option<u64>) -> Result<u64, DriverError>;
    fn free(&mut self, handle: u64, stream: Option<u64>);
    fn synchronisations(&self) -> Option<u64> {
        None
    }
}
