//! All work of a context: events of it, and waits for it that break no stream capture.

use super::captures::{Captures, relaxed};
use crate::next::{self, CUcontext, CUevent};
use base::cuda::{CudaResult, DriverError, check};
use base::mutant;

/// `CU_EVENT_DISABLE_TIMING`
const EVENT_WITHOUT_TIMING: u32 = 2;

/// A new event of the current context.
pub fn new_event() -> CudaResult<u64> {
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: the pointer is to a variable of this frame.
    check(unsafe { next::cuEventCreate(&mut event, EVENT_WITHOUT_TIMING) })?;
    Ok(event as u64)
}

fn is_capture(problem: DriverError) -> bool {
    matches!(
        problem,
        DriverError::CAPTURE_UNSUPPORTED | DriverError::CAPTURE_INVALIDATED
    )
}

/// Records an event of all work that a context has now. That of a primary context covers its green contexts too (cuda.h
/// 13.5, `cuCtxRecordEvent`). Returns false, and records nothing, while a stream capture is open. After a capture was open
/// that the library had not seen begin, the answer is always `NOT_SUPPORTED`, as without events of contexts.
pub fn record(captures: &Captures, context: u64, event: u64) -> CudaResult<bool> {
    if captures.misses_some() {
        return Err(DriverError::NOT_SUPPORTED);
    }
    // SAFETY: the context and its event are live.
    let record = || check(unsafe { next::cuCtxRecordEvent(context as CUcontext, event as CUevent) });
    // The event is recorded in an instant, in which no capture begins.
    match captures.while_none_is_open(record) {
        Some(Ok(())) => Ok(true),
        None => Ok(false),
        Some(Err(problem)) if is_capture(problem) => {
            captures.note_missed();
            Ok(false)
        }
        Some(Err(problem)) => Err(problem),
    }
}

/// Waits for an event. That breaks no capture.
pub fn wait_for(event: u64) -> CudaResult {
    // SAFETY: the event is live.
    relaxed(|| check(unsafe { next::cuEventSynchronize(event as CUevent) }))
}

/// What `ask` says of a new event of all work that a context has now; false if none is recorded.
fn ask_event(captures: &Captures, context: u64, ask: impl FnOnce(u64) -> CudaResult) -> CudaResult<bool> {
    let event = relaxed(|| next::in_context(context, new_event))?;
    let answer = match record(captures, context, event) {
        Ok(true) => ask(event).map(|()| true),
        result => result,
    };
    // SAFETY: the event is live, and is used no more.
    unsafe { next::cuEventDestroy_v2(event as CUevent) };
    answer
}

/// Whether a context has no work now. Waits for nothing.
pub fn is_idle(captures: &Captures, context: u64) -> bool {
    // SAFETY: the event is live.
    let query = |event| relaxed(|| check(unsafe { next::cuEventQuery(event as CUevent) }));
    ask_event(captures, context, query) == Ok(true)
}

/// Waits for all work of a context. No lock may be held. Returns whether all of the work is done: a thread that captures
/// cannot wait.
pub fn wait(captures: &Captures, context: u64) -> CudaResult<bool> {
    if !next::has_context_events() {
        return synchronise(captures, context);
    }
    match ask_event(captures, context, wait_for) {
        // While another thread captures, no event is recorded.
        Ok(false) => synchronise(captures, context),
        // An event that could not be made, recorded or waited for says nothing about the work.
        Err(problem) if !problem.is_fault() => synchronise(captures, context),
        waited => waited,
    }
}

/// The same without events of contexts, which CUDA has from 12.5 on, or while another thread captures.
pub fn synchronise(captures: &Captures, context: u64) -> CudaResult<bool> {
    if captures.open_in_this_thread() {
        return Ok(false);
    }
    let waited = next::in_context(context, || {
        match (captures.ever_used() && !mutant::is(9)).then(|| captures.while_waiting(wait_beside_captures)) {
            Some(Err(DriverError::OUT_OF_MEMORY)) if captures.any_open() => Err(DriverError::CAPTURE_UNSUPPORTED),
            // SAFETY: the call takes no argument.
            None | Some(Err(DriverError::OUT_OF_MEMORY)) => check(unsafe { next::cuCtxSynchronize() }),
            Some(result) => result,
        }
    });
    match waited {
        Err(problem) if is_capture(problem) => Ok(false),
        waited => waited.map(|()| true),
    }
}

/// Waits for all work of the current context, also if a capture begins meanwhile. A synchronisation of the context
/// would invalidate that capture (cuda.h, `cuStreamBeginCapture_v2`). A free waits as well, and a thread in the relaxed
/// mode may free beside a capture of another thread, as the job itself does. So this allocates and frees a few bytes. That
/// costs two calls of the driver.
fn wait_beside_captures() -> CudaResult {
    relaxed(|| {
        let mut address = 0;
        // SAFETY: the pointer is to a variable of this frame, and what is allocated here is freed here.
        unsafe {
            next::retried(|| check(next::cuMemAlloc_v2(&mut address, 1)))?;
            check(next::cuMemFree_v2(address)).or_else(|_| check(next::cuMemFree_v2(address)))
        }
    })
}
