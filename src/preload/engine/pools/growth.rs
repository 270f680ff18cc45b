//! The memory of a context's pool as its policy sees it: `DeviceMemory` over the next layer.
//!
//! A pool grows and shrinks here alone. Every range that is obtained or given back is charged to the device's quota,
//! entered in the registry and the ledger, and written into the journal.

use std::sync::Mutex;

use super::counted;
use super::pool::Pool;
use crate::engine::state::captures::{is_capturing, relaxed};
use crate::engine::state::context_work::{self, new_event};
use crate::engine::state::live_streams::Place;
use crate::engine::state::operations;
use crate::engine::state::peers::DeviceSet;
use crate::engine::state::records;
use crate::next::{
    self, CUevent, CUmemAllocationProp, CUstream, LOCATION_DEVICE, POSIX_FILE_DESCRIPTOR, STREAM_LEGACY,
};
use base::cuda::{CudaResult, DriverError, check};
use base::sync::lock;
use policy::VirtualMemory;
use policy::device_memory::{Available, DeviceMemory, EventId, NoEvent};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
const VIRTUAL_MEMORY: u32 = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`
const RDMA_OF_VIRTUAL_MEMORY: u32 = 110;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`
const MINIMUM_GRANULARITY: u32 = 0;

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
        self.pool
            .note_fault(relaxed(|| next::in_context(self.pool.location.context, work)))
    }

    /// Records events of all work that may use memory of the pool's context: its own, and that of the contexts that were
    /// ever granted access. `None` while a stream capture is open.
    pub(super) fn record_contexts(&self) -> CudaResult<Option<Vec<EventId>>> {
        let own = self.pool.location.context;
        let mut events = Vec::new();
        for context in std::iter::once(own).chain(self.pool.state.peers.users_of(own)) {
            let problem = match self.record_context(context) {
                Ok(Some(event)) => {
                    events.push(event);
                    continue;
                }
                Ok(None) => None,
                // A context that is gone, or has an error, runs nothing any more.
                Err(_) if context != own => continue,
                Err(problem) => Some(problem),
            };
            events.into_iter().for_each(|event| self.forget_event(event));
            return problem.map_or(Ok(None), Err);
        }
        Ok(Some(events))
    }

    /// Records an event of all work of a context. The event of a primary context covers its green contexts too (cuda.h
    /// 13.5, `cuCtxRecordEvent`). `None` while a stream capture is open.
    fn record_context(&self, context: u64) -> CudaResult<Option<EventId>> {
        if !Self::has_context_events() {
            return Err(DriverError::NOT_FOUND);
        }
        let event = match context == self.pool.location.context {
            true => self.own_event()?,
            false => EventId(next::in_context(context, new_event)? | OTHER_CONTEXT),
        };
        let recorded = context_work::record(&self.pool.state.captures, context, number_of(event));
        if recorded == Ok(true) {
            return Ok(Some(event));
        }
        self.forget_event(event);
        recorded.map(|_| None)
    }

    /// Records an event on a stream, while `context` is current.
    fn record_stream(&self, handle: usize, context: u64) -> Result<EventId, NoEvent> {
        let stream = handle as CUstream;
        let record = || {
            // An event on the legacy stream would break the capture of a blocking stream.
            let breaks_others = handle <= STREAM_LEGACY && self.is_capturing();
            // SAFETY: the stream is not destroyed while its event is recorded.
            let captures = || is_capturing(|status| check(unsafe { next::cuStreamIsCapturing(stream, status) }));
            if breaks_others || captures() {
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
    fn record_legacy_stream(&self) -> Result<EventId, NoEvent> {
        let own = self.pool.location.context;
        match self.record_context(own) {
            Ok(event) => event.ok_or(NoEvent::NotNow),
            Err(DriverError::NOT_FOUND | DriverError::NOT_SUPPORTED) => self.record_stream(0, own),
            Err(_) => Err(NoEvent::Never),
        }
    }

    /// An event of the pool's context that is not in use.
    fn own_event(&self) -> CudaResult<EventId> {
        let kept = self.pool.take_event();
        kept.map_or_else(|| self.in_context(new_event), Ok).map(EventId)
    }

    /// Answers the fault of work of the context. A call that maps memory need not tell of it (`sticky_error` in
    /// tests/assumptions), and a request would be served where `cuMemAlloc` fails.
    fn check_work(&self) -> CudaResult {
        let asked = self.own_event().and_then(|event| {
            // SAFETY: the event is live.
            let asked = self.in_context(|| check(unsafe { next::cuEventQuery(handle_of(event)) }));
            self.forget_event(event);
            asked
        });
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
                    let is_own = event.0 & OTHER_CONTEXT == 0;
                    if is_own { waited } else { Ok(()) }
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
            _ => self.synchronise_users().or_else(|problem| match problem.is_fault() {
                true => Err(problem),
                false => self.synchronise_users(),
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
        let users = self.pool.state.peers.users_of(own);
        // A context that is gone, or has an error, runs nothing any more.
        let broken = |context| context_work::synchronise(captures, context) == Ok(false);
        Ok(!users.into_iter().any(broken))
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

    /// The other devices that need access to mapped memory of this pool.
    fn users(&self) -> DeviceSet {
        self.pool.state.peers.with_access_to(self.pool.location.device)
    }

    fn set_access(&self, address: u64, size: u64, devices: impl Iterator<Item = i32>) -> CudaResult {
        self.in_context(|| next::set_access(address, size, devices))
    }

    /// Gives access to all that is mapped to those devices that need it and do not have it yet: one call for each run
    /// of mappings side by side. No device ever loses access, because the driver's `cuCtxDisablePeerAccess` concerns
    /// memory that it allocated.
    pub fn grant_access(&self, memory: VirtualMemory) -> CudaResult {
        let new = self.users().without(self.pool.granted());
        if new.is_empty() {
            return Ok(());
        }
        for (address, size) in memory.runs() {
            self.set_access(address, size, new.devices())?;
        }
        self.pool.note_granted(new);
        Ok(())
    }

    fn attribute(&self, attribute: u32) -> CudaResult<i32> {
        next::device_attribute(self.device(), attribute)
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

    /// What the next layer tells of the device's memory.
    fn information(&self) -> CudaResult<Available> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to variables of this frame.
        self.in_context(|| next::retried(|| check(unsafe { next::cuMemGetInfo_v2(&mut free, &mut total) })))?;
        Ok(Available {
            free: free as u64,
            total: total as u64,
        })
    }

    fn create_with(&self, size: u64, properties: &CUmemAllocationProp) -> CudaResult<u64> {
        let mut handle = 0;
        let create = || {
            // SAFETY: the pointer to the handle is to a variable of this frame, and the properties outlive the call.
            let created = unsafe { next::cuMemCreate(&mut handle, size as usize, properties, 0) };
            next::of_request(check(created))
        };
        self.in_context(create)?;
        Ok(handle)
    }
}

fn number_of(EventId(event): EventId) -> u64 {
    event & !OTHER_CONTEXT
}

fn handle_of(event: EventId) -> CUevent {
    number_of(event) as CUevent
}

/// Tells each reason once, although each pool finds it.
fn warn_of_chunks(why: &str) {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut told = lock(&TOLD);
    if told.iter().any(|one| one == why) {
        return;
    }
    told.push(why.to_owned());
    drop(told);
    base::say::warn!("auto_growth grows in chunks, which can be left fragmented: {why}");
}

impl DeviceMemory for Growth {
    fn allocate(&self, size: u64) -> CudaResult<u64> {
        let bytes = usize::try_from(size).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        let mut address = 0;
        self.charged(size, || {
            self.in_context(|| {
                // SAFETY: the pointer is to a variable of this frame.
                next::of_request(check(unsafe { next::cuMemAlloc_v2(&mut address, bytes) }))
            })
        })?;
        self.gained(address, size, false);
        Ok(address)
    }

    fn free(&self, address: u64, size: u64) -> CudaResult {
        self.wait_before_free()?;
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

    fn has_no_work(&self) -> bool {
        let Ok(Some(events)) = self.record_contexts() else {
            return false;
        };
        let is_over = !events.iter().any(|&event| self.is_pending(event));
        events.into_iter().for_each(|event| self.forget_event(event));
        is_over
    }

    fn record_event(&self, stream: u64) -> Result<EventId, NoEvent> {
        let record = |place| match place {
            Place::Stream { handle, context } => self.record_stream(handle, context),
            Place::LegacyStream => self.record_legacy_stream(),
            Place::Context(context) => match self.record_context(context) {
                Ok(event) => event.ok_or(NoEvent::NotNow),
                // The thread that the stream belongs to may record the event later.
                Err(DriverError::NOT_FOUND | DriverError::NOT_SUPPORTED) => Err(NoEvent::NotNow),
                Err(_) => Err(NoEvent::Never),
            },
        };
        let recorded = self.pool.state.live_streams.with(stream, record);
        recorded.unwrap_or(Err(NoEvent::Never))
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
        let actual = self.information()?;
        Ok(self.pool.state.limits.within(self.pool.location.device, actual))
    }

    fn granularity(&self) -> Option<u64> {
        let free = || self.information().ok().map(|information| information.free);
        match self.in_context(|| self.least_granularity()) {
            Ok(granularity) if counted::is_counted(self, free, granularity) => Some(granularity),
            Ok(_) => {
                warn_of_chunks(
                    "the next layer does not count memory of cuMemCreate, so its limit would not hold for it",
                );
                None
            }
            Err(DriverError::NOT_SUPPORTED) => {
                warn_of_chunks("the next layer has no virtual memory management");
                None
            }
            // The pool serves nothing more.
            Err(problem) if problem.is_fault() => None,
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

    fn give_addresses_back(&self, address: u64, size: u64) {
        // What fails twice stays with the driver.
        // SAFETY: `reserve` returned the range, and nothing is mapped there.
        let free = || next::retried(|| check(unsafe { next::cuMemAddressFree(address, size as usize) }));
        let _ = self.in_context(free);
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
        self.in_context(|| next::retried(|| check(unsafe { next::cuMemRelease(handle) })))?;
        self.refund(size);
        Ok(())
    }

    fn map(&self, address: u64, size: u64, handle: u64) -> CudaResult {
        // SAFETY: the address lies in a range that `reserve` returned, and the handle is live.
        self.in_context(|| check(unsafe { next::cuMemMap(address, size as usize, 0, handle, 0) }))
    }

    fn unmap(&self, address: u64, size: u64) -> CudaResult {
        // SAFETY: the range consists of whole mappings of ours. The policy unmaps clean memory only, so no work uses them.
        self.in_context(|| next::retried(|| check(unsafe { next::cuMemUnmap(address, size as usize) })))
    }

    fn allow_access(&self, address: u64, size: u64) -> CudaResult {
        let peers = self.users().union(self.pool.granted());
        self.set_access(address, size, std::iter::once(self.device()).chain(peers.devices()))?;
        self.check_work()
    }

    fn mapped(&self, address: u64, size: u64, again: bool) {
        if !self.pool.has_mapped_memory() {
            operations::memory_is_mapped();
        }
        self.gained(address, size, again);
    }

    fn is_part(&self, address: u64, size: u64, home: u64) {
        let record = records::stitch_part(self.pool.location.device, address, size, home);
        self.pool.state.records.write(record);
    }

    fn unmapped(&self, address: u64, size: u64, again: bool) {
        self.lost(address, size, again, false);
    }

    fn no_virtual_memory(&self, why: DriverError) {
        if why.is_fault() {
            return;
        }
        warn_of_chunks(&format!("virtual memory management fails with CUDA error {}", why.0));
    }
}
