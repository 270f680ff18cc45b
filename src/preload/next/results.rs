//! Results of calls of our own: a call is made once more if it fails, and the next layer's own result of a request that it
//! refused is kept.
//!
//! HAMi-core answers -1 if its limit refuses a request (its `allocator.c`), and TGS answers 1. The job is told that memory
//! ran out, and the journal what the layer answered.

use std::cell::Cell;

use super::driver::{information_behind_layer, is_of_layer};
use super::information;
use super::signatures::hooked;
use base::cuda::{self, CudaResult, DriverError, SUCCESS, check};

/// Makes a call of our own, and makes it once more if it fails. The failure may be the error of an earlier launch,
/// which says nothing about this call (cuda.h 13.0, the note on asynchronous errors of `cuCtxGetDevice` and others).
/// Memory whose device is not known would be booked wrongly, and memory that is not given back would be lost.
/// `cuMemFree` must not be called so: if it answers the error of an earlier launch, it may have freed the memory. The
/// address may belong to another block by then.
#[inline]
pub fn retried<T>(mut ask: impl FnMut() -> CudaResult<T>) -> CudaResult<T> {
    ask().or_else(|problem| if is_answer(problem) { Err(problem) } else { ask() })
}

/// What a question of our own writes over `first`. It is asked once more if it fails.
#[inline]
pub fn told<T>(first: T, mut ask: impl FnMut(&mut T) -> i32) -> CudaResult<T> {
    let mut answer = first;
    retried(|| check(ask(&mut answer)))?;
    Ok(answer)
}

/// Whether an error will come again.
#[cold]
fn is_answer(problem: DriverError) -> bool {
    use DriverError as E;
    problem.is_fault()
        || matches!(
            problem,
            E::INVALID_CONTEXT | E::NOT_FOUND | E::NOT_SUPPORTED | E::NOT_READY
        )
}

thread_local! {
    /// The result of the last request of this thread.
    static LAST: Cell<i32> = const { Cell::new(SUCCESS) };
}

/// The result of a request for `size` bytes of memory, as the job gets it. The next layer's own stays known in this thread
/// until its next request.
pub fn of_request<T>(result: CudaResult<T>, size: u64) -> CudaResult<T> {
    let code = result.as_ref().err().map_or(SUCCESS, |error| error.0);
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.set(code));
    // Without a layer the driver's answer stands: its INVALID_VALUE says nothing of memory.
    let lacks_memory = || {
        let of_layer = || information().is_ok_and(|shown| shown.free < size);
        let of_driver = || information_behind_layer().is_some_and(|driver| driver.free < size);
        is_of_layer(hooked::cuMemAlloc_v2()) && (of_layer() || of_driver())
    };
    match result {
        Err(DriverError::INVALID_VALUE) if lacks_memory() => Err(DriverError::OUT_OF_MEMORY),
        result => cuda::of_request(result),
    }
}

/// The result with which the next layer refused the last request of this thread; `None` if it did not refuse it.
pub fn refused_with() -> Option<i32> {
    LAST.try_with(Cell::get).ok().filter(|&code| code != SUCCESS)
}
