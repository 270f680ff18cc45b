//! The next layer's own result of a request for memory that it refused.
//!
//! HAMi-core answers -1 if its limit refuses a request (its `allocator.c`). The job is told that memory ran out, and the
//! journal what the layer answered.

use std::cell::Cell;

use base::cuda::{self, CudaResult, DriverError, SUCCESS};

thread_local! {
    /// The result of the last request of this thread.
    static LAST: Cell<i32> = const { Cell::new(SUCCESS) };
}

/// The result of a request for memory, as the job gets it. The next layer's own stays known in this thread until its next
/// request.
pub fn of_request<T>(result: CudaResult<T>) -> CudaResult<T> {
    let code = match &result {
        Ok(_) => SUCCESS,
        Err(DriverError(code)) => *code,
    };
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.set(code));
    cuda::of_request(result)
}

/// The result with which the next layer refused the last request of this thread; `None` if it did not refuse it.
pub fn refused_with() -> Option<i32> {
    LAST.try_with(Cell::get).ok().filter(|&code| code != SUCCESS)
}
