//! Calls of our own that are made once more if they fail.

use base::cuda::{CudaResult, DriverError, check};

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
