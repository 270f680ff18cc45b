//! The work that may use the memory of a context's pool: events that tell of its end, and waits for it.

use super::growth::{Growth, OTHER_CONTEXT, handle_of, number_of, unless_over};
use crate::engine::state::captures::{is_capturing, relaxed};
use crate::engine::state::context_work::{self, new_event};
use crate::next::{self, CUevent, CUstream, STREAM_LEGACY};
use base::cuda::{CudaResult, DriverError, check};
use base::mutant;
use base::sync::lock;
use policy::device_memory::{DeviceMemory, EventId, NoEvent};

impl Growth {
    /// Records events of all work that may use memory of the pool's context: its own, and that of the contexts that were
    /// ever granted access. `None` while a stream capture is open.
    pub(super) fn record_contexts(&self) -> CudaResult<Option<Vec<EventId>>> {
        let own = self.pool.location.context;
        let mut events = Vec::new();
        let mut peers = self.pool.state.peers.users_of(own);
        peers.retain(|_| !mutant::is(4)); // a missed wait
        for context in std::iter::once(own).chain(peers) {
            let problem = match self.record_context(context) {
                Ok(Some(event)) => {
                    events.push(event);
                    continue;
                }
                Ok(None) => None,
                Err(problem) if context != own && problem.ends_work() => continue,
                Err(problem) => Some(problem),
            };
            events.into_iter().for_each(|event| self.forget_event(event));
            return problem.map_or(Ok(None), Err);
        }
        Ok(Some(events))
    }

    /// Records an event of all work of a context. The event of a primary context covers its green contexts too (cuda.h
    /// 13.5, `cuCtxRecordEvent`). `None` while a stream capture is open.
    pub(super) fn record_context(&self, context: u64) -> CudaResult<Option<EventId>> {
        if !next::has_context_events() {
            return Err(DriverError::NOT_FOUND);
        }
        let event = if context == self.pool.location.context {
            self.own_event()?
        } else {
            EventId(self.event_of_other(context)? | OTHER_CONTEXT)
        };
        let recorded = context_work::record(&self.pool.state.captures, context, number_of(event));
        if recorded == Ok(true) {
            return Ok(Some(event));
        }
        self.forget_event(event);
        recorded.map(|_| None)
    }

    /// Records an event on a stream, while `context` is current.
    pub(super) fn record_stream(&self, handle: usize, context: u64) -> Result<EventId, NoEvent> {
        let stream = handle as CUstream;
        let record = || {
            // An event on the legacy stream would break the capture of a blocking stream.
            let breaks_others = handle <= STREAM_LEGACY && self.is_capturing();
            if breaks_others || is_capturing(handle) {
                return Ok(None);
            }
            let event = self.own_event()?;
            // SAFETY: the event and the stream are live.
            let recorded = check(unsafe { next::cuEventRecord(handle_of(event), stream) });
            recorded.inspect_err(|_| self.forget_event(event))?;
            Ok(Some(event))
        };
        match relaxed(|| next::in_context(context, record)) {
            Ok(event) => event.ok_or(NoEvent::NotNow),
            Err(_) => Err(NoEvent::Never),
        }
    }

    /// Records an event of the context, which covers the legacy default stream. The later work of all blocking streams
    /// would wait for an event on that stream, also where the job lets these streams wait for each other (cuda.h 13.0,
    /// `CU_STREAM_LEGACY`). A driver without events of contexts gets one on the stream.
    pub(super) fn record_legacy_stream(&self) -> Result<EventId, NoEvent> {
        let own = self.pool.location.context;
        match self.record_context(own) {
            Ok(event) => event.ok_or(NoEvent::NotNow),
            Err(DriverError::NOT_FOUND | DriverError::NOT_SUPPORTED) => self.record_stream(0, own),
            Err(_) => Err(NoEvent::Never),
        }
    }

    /// A new event of another context. Destroys those of other contexts that are not in use.
    fn event_of_other(&self, context: u64) -> CudaResult<u64> {
        let unused = std::mem::take(&mut *lock(&self.pool.unused_events_of_others));
        for unused in unused {
            // SAFETY: the event is live, and is used no more.
            unsafe { next::cuEventDestroy_v2(unused as CUevent) };
        }
        next::in_context(context, new_event)
    }

    /// An event of the pool's context that is not in use.
    pub(super) fn own_event(&self) -> CudaResult<EventId> {
        let kept = self.pool.take_event();
        kept.map_or_else(|| self.in_context(new_event), Ok).map(EventId)
    }

    /// Answers the fault of work of the context. A call that maps memory need not tell of it (`sticky_error` in
    /// tests/assumptions), and a request would be served where `cuMemAlloc` fails. An event is asked if one is there: a new one
    /// might be held up.
    pub(super) fn check_work(&self) -> CudaResult {
        let asked = match self.pool.take_event().map(EventId) {
            Some(event) => {
                // SAFETY: the event is live.
                let asked = self.in_context(|| check(unsafe { next::cuEventQuery(handle_of(event)) }));
                self.forget_event(event);
                asked
            }
            None => self.information().map(drop),
        };
        match asked {
            Err(problem) if problem.is_fault() => asked,
            _ => Ok(()),
        }
    }

    /// Whether the work of an event has not ended. An event of a context that is gone, or has an error, is over.
    pub(super) fn is_pending(&self, event: EventId) -> bool {
        // SAFETY: the event is live, because events are kept as long as their context.
        let ask = || check(unsafe { next::cuEventQuery(handle_of(event)) });
        let asked = match relaxed(|| next::retried(ask)) {
            // A thread without a context, such as the keeper.
            Err(DriverError::INVALID_CONTEXT) => self.in_context(ask),
            asked => asked,
        };
        asked == Err(DriverError::NOT_READY)
    }

    /// Waits for all work that may use memory of the pool's context. No lock may be held. Returns whether all of the work
    /// is done: a thread that captures cannot wait.
    pub fn wait_for_users(&self) -> CudaResult<bool> {
        let waited = match self.record_contexts() {
            Ok(None) => Ok(false),
            Ok(Some(events)) => {
                let waited = events.iter().try_for_each(|&event| {
                    let waited = context_work::wait_for(number_of(event));
                    unless_over(event.0 & OTHER_CONTEXT == 0, waited, ())
                });
                events.into_iter().for_each(|event| self.forget_event(event));
                waited.map(|()| true)
            }
            Err(problem) => Err(problem),
        };
        let waited = match waited {
            Ok(true) => Ok(true),
            Err(problem) if problem.is_fault() => Err(problem),
            // While another thread captures, no event is recorded. One that could not be made, recorded or waited for says
            // nothing about the work. If the wait fails too, a free tells an error although the block is free, so the wait
            // is tried again.
            _ => self.synchronise_users().or_else(|problem| {
                if problem.is_fault() {
                    Err(problem)
                } else {
                    self.synchronise_users()
                }
            }),
        };
        self.pool.note_fault(waited)
    }

    /// The same without events of contexts, which CUDA has from 12.5 on, or while another thread captures.
    fn synchronise_users(&self) -> CudaResult<bool> {
        let captures = &self.pool.state.captures;
        let own = self.pool.location.context;
        if !context_work::synchronise(captures, own)? {
            return Ok(false);
        }
        for user in self.pool.state.peers.users_of(own) {
            if !unless_over(false, context_work::synchronise(captures, user), true)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
