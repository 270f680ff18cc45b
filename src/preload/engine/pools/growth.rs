//! The memory of a context's pool as its policy sees it: `DeviceMemory` over the next layer.
//!
//! A pool grows and shrinks here alone. Every range that is obtained or given back is charged to the device's quota,
//! entered in the registry and the ledger, and written into the journal.

use super::pool::Pool;
use crate::engine::state::captures::{is_capturing, relaxed};
use crate::engine::state::records;
use crate::next::{
    self, CUcontext, CUevent, CUmemAccessDesc, CUmemAllocationProp, CUstream, LOCATION_DEVICE, POSIX_FILE_DESCRIPTOR,
};
use base::cuda::{CudaResult, DriverError, check};
use policy::device_memory::{Available, DeviceMemory, EventId, NoEvent};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
const VIRTUAL_MEMORY: u32 = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`
const RDMA_OF_VIRTUAL_MEMORY: u32 = 110;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`
const MINIMUM_GRANULARITY: u32 = 0;

/// `CU_EVENT_DISABLE_TIMING`
const EVENT_WITHOUT_TIMING: u32 = 2;

/// Marks the event of a context that is not the pool's own. The handle of an event is a pointer, so the bit is free.
const OTHER_CONTEXT: u64 = 1;

pub struct Growth {
    /// The pool of a whole context.
    pool: &'static Pool,
}

impl Growth {
    pub fn of(root: &'static Pool) -> Growth {
        Growth { pool: root }
    }

    /// A segment or mapped memory belongs to the pool from now on. If `again`, the pool has the memory at other addresses
    /// already, so it counts nothing.
    pub fn gained(&self, address: u64, size: u64, again: bool) {
        let (device, state) = (self.pool.location.device, self.pool.state);
        self.pool.registry.add_segment(address, size, self.pool, again);
        if !again {
            state.ledger.segment_obtained(device, size);
            state.measurements.device_grew(device);
        }
        let record = records::segment_obtained(device, address, size, again);
        state.records.write(record);
    }

    /// A segment or mapped memory belongs to the pool no longer: because the context is destroyed (`context_gone`), or
    /// because the pool gives it back. If `again`, the pool still has the memory at other addresses.
    pub fn lost(&self, address: u64, size: u64, again: bool, context_gone: bool) {
        let (device, state) = (self.pool.location.device, self.pool.state);
        self.pool.registry.remove_segment(address, size);
        if !again {
            state.ledger.segment_returned(device, size);
        }
        let record = records::segment_returned(device, address, size, again, context_gone);
        state.records.write(record);
    }

    /// Runs `work` with the pool's context current. A thread that frees a block may have another context, or none. The
    /// calls invalidate no capture.
    fn in_context<T>(&self, work: impl FnOnce() -> CudaResult<T>) -> CudaResult<T> {
        relaxed(|| next::in_context(self.pool.location.context, work))
    }

    /// Records events of all work that may use memory of the pool's context: its own, and that of the contexts that were
    /// ever granted access. `None` while a stream capture is open.
    fn record_contexts(&self) -> CudaResult<Option<Vec<EventId>>> {
        if !Self::has_context_events() {
            return Err(DriverError::NOT_FOUND);
        }
        let own = self.pool.location.context;
        let captures = &self.pool.state.captures;
        let mut events = Vec::new();
        for context in std::iter::once(own).chain(self.pool.state.peers.users_of(own)) {
            let kept = if context == own { self.pool.take_event() } else { None };
            let event = match kept.map_or_else(|| next::in_context(context, new_event), Ok) {
                Ok(event) if context == own => EventId(event),
                Ok(event) => EventId(event | OTHER_CONTEXT),
                Err(problem) if context == own => return Err(problem),
                // The context is gone, so nothing runs in it.
                Err(_) => continue,
            };
            events.push(event);
            // SAFETY: the context and its event are live.
            let record = || check(unsafe { next::cuCtxRecordEvent(context as CUcontext, handle_of(event)) });
            let problem = match captures.while_none_is_open(record) {
                Some(Ok(())) => continue,
                None => None,
                // A stream capture is open that the library has not seen begin.
                Some(Err(DriverError::CAPTURE_UNSUPPORTED | DriverError::CAPTURE_INVALIDATED)) => None,
                // A context with another error runs nothing any more.
                Some(Err(_)) if context != own => continue,
                Some(Err(problem)) => Some(problem),
            };
            events.into_iter().for_each(|event| self.forget_event(event));
            return problem.map_or(Ok(None), Err);
        }
        Ok(Some(events))
    }

    /// Waits for all work that may use memory of the pool's context. No lock may be held. Returns whether all of the work
    /// is done: a wait cannot begin while a stream capture is open.
    pub fn wait_for_users(&self) -> CudaResult<bool> {
        // An event of a context is recorded in an instant, in which no capture begins. The wait for it breaks no capture.
        match self.record_contexts() {
            Ok(None) => Ok(false),
            Ok(Some(events)) => {
                let waited = events.iter().try_for_each(|&event| {
                    // SAFETY: the event is live.
                    let waited = relaxed(|| check(unsafe { next::cuEventSynchronize(handle_of(event)) }));
                    let is_own = event.0 & OTHER_CONTEXT == 0;
                    if is_own { waited } else { Ok(()) }
                });
                events.into_iter().for_each(|event| self.forget_event(event));
                waited.map(|()| true)
            }
            Err(DriverError::NOT_FOUND | DriverError::NOT_SUPPORTED) => self.synchronise_users(),
            Err(problem) => Err(problem),
        }
    }

    /// The same without events of contexts, which CUDA has from 12.5 on.
    fn synchronise_users(&self) -> CudaResult<bool> {
        let is_capture = |problem| {
            matches!(
                problem,
                DriverError::CAPTURE_UNSUPPORTED | DriverError::CAPTURE_INVALIDATED
            )
        };
        let captures = &self.pool.state.captures;
        let synchronise = |context| {
            next::in_context(context, || {
                let waited = captures.ever_used().then(wait_beside_captures);
                match waited {
                    Some(Err(DriverError::OUT_OF_MEMORY)) if captures.any_open() => {
                        Err(DriverError::CAPTURE_UNSUPPORTED)
                    }
                    // SAFETY: the call takes no argument.
                    None | Some(Err(DriverError::OUT_OF_MEMORY)) => check(unsafe { next::cuCtxSynchronize() }),
                    Some(result) => result,
                }
            })
        };
        let own = self.pool.location.context;
        if self.is_capturing() {
            return Ok(false);
        }
        match synchronise(own) {
            Err(problem) if is_capture(problem) => return Ok(false),
            result => result?,
        }
        let broken = |context| synchronise(context).is_err_and(is_capture);
        Ok(!self.pool.state.peers.users_of(own).into_iter().any(broken))
    }

    /// Whether events tell when all work is done that may use memory of a context.
    pub fn has_context_events() -> bool {
        next::has_context_events()
    }

    fn device(&self) -> i32 {
        i32::from(self.pool.location.device)
    }

    /// Charges `size` bytes, then obtains them.
    fn charged(&self, size: u64, obtain: impl FnOnce() -> CudaResult) -> CudaResult {
        if let Some(quota) = self.pool.state.limits.of(self.pool.location.device)
            && quota.take(size).is_err()
        {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        obtain().inspect_err(|_| self.refund(size))
    }

    fn refund(&self, size: u64) {
        self.pool.state.limits.refund(self.pool.location.device, size);
    }

    /// Physical memory on the pool's device. What `cuMemAlloc` hands out can be shared with other processes
    /// (`shareable`) and reached by network cards (`reachable`).
    fn properties(&self, shareable: bool, reachable: bool) -> CUmemAllocationProp {
        // SAFETY: in this plain C structure zero is a value of every field. The enums are written as the numbers they
        // are.
        unsafe {
            let mut properties: CUmemAllocationProp = std::mem::zeroed();
            (&raw mut properties.type_).cast::<u32>().write(PINNED);
            if shareable {
                (&raw mut properties.requestedHandleTypes)
                    .cast::<u32>()
                    .write(POSIX_FILE_DESCRIPTOR);
            }
            properties.allocFlags.gpuDirectRDMACapable = u8::from(reachable);
            let location = &raw mut properties.location;
            (&raw mut (*location).type_).cast::<u32>().write(LOCATION_DEVICE);
            (*location).id = self.device();
            properties
        }
    }

    fn attribute(&self, attribute: u32) -> CudaResult<i32> {
        let mut value = 0;
        // SAFETY: the pointer is to a variable of this frame.
        check(unsafe { next::cuDeviceGetAttribute(&mut value, attribute, self.device()) })?;
        Ok(value)
    }

    fn least_granularity(&self) -> CudaResult<u64> {
        if self.attribute(VIRTUAL_MEMORY)? == 0 {
            return Err(DriverError::NOT_SUPPORTED);
        }
        let mut granularity = 0;
        let properties = self.properties(false, false);
        // SAFETY: both pointers are to variables of this frame.
        check(unsafe { next::cuMemGetAllocationGranularity(&mut granularity, &properties, MINIMUM_GRANULARITY) })?;
        match granularity {
            0 => Err(DriverError::NOT_SUPPORTED),
            granularity => Ok(granularity as u64),
        }
    }

    fn create_with(&self, size: u64, properties: &CUmemAllocationProp) -> CudaResult<u64> {
        let mut handle = 0;
        // SAFETY: the pointer to the handle is to a variable of this frame, and the properties outlive the call.
        let create = || check(unsafe { next::cuMemCreate(&mut handle, size as usize, properties, 0) });
        self.in_context(create)?;
        Ok(handle)
    }
}

fn handle_of(EventId(event): EventId) -> CUevent {
    (event & !OTHER_CONTEXT) as CUevent
}

/// A new event of the current context.
fn new_event() -> CudaResult<u64> {
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: the pointer is to a variable of this frame.
    check(unsafe { next::cuEventCreate(&mut event, EVENT_WITHOUT_TIMING) })?;
    Ok(event as u64)
}

/// Waits for all work of the current context, also if a capture begins meanwhile. A synchronisation of the context would
/// invalidate that capture (cuda.h, `cuStreamBeginCapture_v2`). A free waits as well, and a thread in the relaxed mode
/// may free beside a capture, so this allocates and frees a few bytes. That costs two calls of the driver.
fn wait_beside_captures() -> CudaResult {
    relaxed(|| {
        let mut address = 0;
        // SAFETY: the pointer is to a variable of this frame, and what is allocated here is freed here.
        unsafe {
            check(next::cuMemAlloc_v2(&mut address, 1))?;
            check(next::cuMemFree_v2(address))
        }
    })
}

fn warn_of_chunks(why: &str) {
    tracing::warn!("auto_growth grows in chunks, which can be left fragmented: {why}");
}

impl DeviceMemory for Growth {
    fn allocate(&self, size: u64) -> CudaResult<u64> {
        let bytes = usize::try_from(size).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        let mut address = 0;
        self.charged(size, || {
            // SAFETY: the pointer is to a variable of this frame.
            self.in_context(|| check(unsafe { next::cuMemAlloc_v2(&mut address, bytes) }))
        })?;
        self.gained(address, size, false);
        Ok(address)
    }

    fn free(&self, address: u64, size: u64) -> CudaResult {
        // SAFETY: the policy gives back an address that `allocate` gave it.
        let free = || self.in_context(|| check(unsafe { next::cuMemFree_v2(address) }));
        // Off the books before the free: right after it, another thread may be given the same address.
        self.lost(address, size, false, false);
        let result = free();
        match result {
            Ok(()) => self.refund(size),
            Err(problem) => {
                self.gained(address, size, false);
                let record = records::segment_free_failed(self.pool.location.device, address, size, problem);
                self.pool.state.records.write(record);
            }
        }
        result
    }

    fn is_capturing(&self) -> bool {
        self.pool.state.captures.any_open()
    }

    fn record_event(&self, stream: u64) -> Result<EventId, NoEvent> {
        let state = self.pool.state;
        let record = |handle: usize| {
            let stream = handle as CUstream;
            // SAFETY: the stream is not destroyed while its event is recorded.
            if self.is_capturing() || is_capturing(|status| check(unsafe { next::cuStreamIsCapturing(stream, status) }))
            {
                return Err(NoEvent::NotNow);
            }
            let recorded = self.in_context(|| {
                let event = match self.pool.take_event() {
                    Some(event) => event,
                    None => new_event()?,
                };
                // SAFETY: the event and the stream are live.
                check(unsafe { next::cuEventRecord(event as CUevent, stream) })?;
                Ok(EventId(event))
            });
            recorded.map_err(|_| NoEvent::Never)
        };
        state.live_streams.with(stream, record).unwrap_or(Err(NoEvent::Never))
    }

    fn record_all(&self) -> Result<Vec<EventId>, NoEvent> {
        match self.record_contexts() {
            Ok(Some(events)) => Ok(events),
            Ok(None) => Err(NoEvent::NotNow),
            Err(_) => Err(NoEvent::Never),
        }
    }

    fn event_is_done(&self, event: EventId) -> bool {
        // SAFETY: the event is live, because events are kept as long as their context.
        relaxed(|| check(unsafe { next::cuEventQuery(handle_of(event)) })).is_ok()
    }

    fn forget_event(&self, event: EventId) {
        match event.0 & OTHER_CONTEXT {
            0 => self.pool.keep_event(event.0),
            // SAFETY: the event is live, and is used no more.
            _ => drop(check(unsafe { next::cuEventDestroy_v2(handle_of(event)) })),
        }
    }

    fn available(&self) -> CudaResult<Available> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to variables of this frame.
        self.in_context(|| check(unsafe { next::cuMemGetInfo_v2(&mut free, &mut total) }))?;
        let actual = Available {
            free: free as u64,
            total: total as u64,
        };
        Ok(self.pool.state.limits.within(self.pool.location.device, actual))
    }

    fn granularity(&self) -> Option<u64> {
        match self.in_context(|| self.least_granularity()) {
            Ok(granularity) => Some(granularity),
            Err(DriverError::NOT_SUPPORTED) => {
                warn_of_chunks("the next layer has no virtual memory management");
                None
            }
            Err(problem) => {
                self.no_virtual_memory(problem);
                None
            }
        }
    }

    fn reserve(&self, size: u64, alignment: u64) -> CudaResult<u64> {
        let mut address = 0;
        let (size, alignment) = (size as usize, alignment as usize);
        // SAFETY: the pointer is to a variable of this frame.
        self.in_context(|| check(unsafe { next::cuMemAddressReserve(&mut address, size, alignment, 0, 0) }))?;
        Ok(address)
    }

    fn create(&self, size: u64) -> CudaResult<u64> {
        let reachable = self.attribute(RDMA_OF_VIRTUAL_MEMORY).is_ok_and(|value| value != 0);
        // Memory that cannot be shared or reached is better than none.
        let kinds = [(true, reachable), (true, false), (false, false)];
        let mut result = Err(DriverError::NOT_SUPPORTED);
        self.charged(size, || {
            for (shareable, reachable) in kinds {
                result = self.create_with(size, &self.properties(shareable, reachable));
                if matches!(result, Ok(_) | Err(DriverError::OUT_OF_MEMORY)) {
                    break;
                }
            }
            result.map(drop)
        })?;
        result
    }

    fn release(&self, handle: u64, size: u64) -> CudaResult {
        // SAFETY: `create` returned the handle, and it was not released since.
        self.in_context(|| check(unsafe { next::cuMemRelease(handle) }))?;
        self.refund(size);
        Ok(())
    }

    fn map(&self, address: u64, size: u64, handle: u64) -> CudaResult {
        // SAFETY: the address lies in a range that `reserve` returned, and the handle is live.
        self.in_context(|| check(unsafe { next::cuMemMap(address, size as usize, 0, handle, 0) }))
    }

    fn unmap(&self, address: u64, size: u64) -> CudaResult {
        // SAFETY: the range consists of whole mappings of ours. The policy unmaps clean memory only, so no work uses them.
        self.in_context(|| check(unsafe { next::cuMemUnmap(address, size as usize) }))
    }

    fn allow_access(&self, address: u64, size: u64) -> CudaResult {
        let peers = self.pool.state.peers.with_access_to(self.pool.location.device);
        let devices = std::iter::once(self.device()).chain(peers);
        let access: Vec<CUmemAccessDesc> = devices.map(next::access_from).collect();
        // SAFETY: the descriptions outlive the call.
        let allow = || unsafe { next::cuMemSetAccess(address, size as usize, access.as_ptr(), access.len()) };
        self.in_context(|| check(allow()))
    }

    fn mapped(&self, address: u64, size: u64, again: bool) {
        self.gained(address, size, again);
    }

    fn unmapped(&self, address: u64, size: u64, again: bool) {
        self.lost(address, size, again, false);
    }

    fn no_virtual_memory(&self, why: DriverError) {
        warn_of_chunks(&format!("virtual memory management fails with CUDA error {}", why.0));
    }
}
