//! The trait `Allocator`: a policy, a model of a framework's allocator, or the driver.

use base::cuda::DriverError;

use super::requests::{LastUse, Way};

/// Serves the requests of a trace.
pub trait Allocator {
    /// Returns a handle for `size` bytes.
    fn allocate(&mut self, size: u64, way: Way) -> Result<u64, DriverError>;
    fn free(&mut self, handle: u64, last_use: LastUse);
}
