//! The trait of everything that can serve the requests of a trace.

use policy::device_memory::DriverError;

/// What serves the requests of a trace.
pub trait Allocator {
    /// A handle for `size` bytes, used on `stream` where the trace names it.
    fn allocate(&mut self, size: u64, stream: Option<u64>) -> Result<u64, DriverError>;
    fn free(&mut self, handle: u64, stream: Option<u64>);
    fn synchronisations(&self) -> Option<u64> {
        None
    }
}
