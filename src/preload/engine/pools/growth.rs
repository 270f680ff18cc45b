//! The memory of a context's pool as its policy sees it: `DeviceMemory` over the next layer.
//!
//! A pool grows and shrinks here alone. Every range that is obtained or given back is charged to the device's quota,
//! entered in the registry and the ledger, and written into the journal.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::CUdevice_attribute;
use once_cell::race::OnceBool;

use super::pool::Pool;
use crate::engine::state::captures::relaxed;
use crate::engine::state::live_streams::Place;
use crate::engine::state::operations;
use crate::engine::state::peers::DeviceSet;
use crate::next::driver::limit_of_layer;
use crate::next::{self, CUevent, CUmemAllocationProp, LOCATION_DEVICE, POSIX_FILE_DESCRIPTOR};
use base::cuda::{CudaResult, DriverError, check};
use base::sync::lock;
use journal::format::Event;
use policy::VirtualMemory;
use policy::device_memory::{Available, DeviceMemory, EventId, NoEvent};

const VIRTUAL_MEMORY: u32 = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as u32;
const RDMA_OF_VIRTUAL_MEMORY: u32 =
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED as u32;
const DECOMPRESSES: u32 = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK as u32;
/// `CU_MEM_CREATE_USAGE_HW_DECOMPRESS`. Memory of `cuMemAlloc` can be used so without it (cuda.h 13.0:12652).
const DECOMPRESSION: u16 = 2;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`
const MINIMUM_GRANULARITY: u32 = 0;

/// Marks the event of a context that is not the pool's own. The handle of an event is a pointer, so the bit is free.
pub(super) const OTHER_CONTEXT: u64 = 1;

pub struct Growth {
    /// The pool of a whole context.
    pub pool: &'static Pool,
}

impl Growth {
    /// A segment or mapped memory belongs to the pool from now on. If `again`, the pool has the memory at other addresses
    /// already, so it counts nothing.
    pub fn gained(&self, address: u64, size: u64, again: bool) {
        let (device, state) = (self.pool.location.device, self.pool.state);
        self.pool.registry.add_segment(address, size, self.pool, again);
        if !again {
            state.ledger.segment_changes(device, size, true);
            state.measurements.device_grew(device);
        }
        state.records.note(device, Event::SegmentAlloc { address, size, again });
    }

    /// A segment or mapped memory belongs to the pool no longer: because the context is destroyed (`context_gone`), or
    /// because the pool gives it back. If `again`, the pool still has the memory at other addresses.
    pub fn lost(&self, address: u64, size: u64, again: bool, context_gone: bool) {
        let (device, state) = (self.pool.location.device, self.pool.state);
        self.pool.registry.remove_segment(address, size, self.pool);
        if !again {
            state.ledger.segment_changes(device, size, false);
        }
        let event = Event::SegmentFree {
            address,
            size,
            again,
            context_gone,
        };
        state.records.note(device, event);
    }

    /// Runs `work` with the pool's context current. A thread that frees a block may have another context, or none. The
    /// calls invalidate no capture.
    pub(super) fn in_context<T>(&self, work: impl FnOnce() -> CudaResult<T>) -> CudaResult<T> {
        self.pool
            .note_fault(relaxed(|| next::in_context(self.pool.location.context, work)))
    }

    /// Runs `work`, which gives back what belongs to the process and to no context, and runs it once more if it fails.
    /// Another thread may have destroyed the context meanwhile: then it runs without.
    fn whatever_context(&self, work: impl Fn() -> CudaResult) -> CudaResult {
        let retried = || next::retried(&work);
        match self.in_context(retried) {
            Err(DriverError::INVALID_CONTEXT | DriverError::CONTEXT_IS_DESTROYED) => relaxed(retried),
            result => result,
        }
    }

    fn device(&self) -> i32 {
        i32::from(self.pool.location.device)
    }

    /// Charges `size` bytes, then obtains them.
    fn charged(&self, size: u64, obtain: impl FnOnce() -> CudaResult) -> CudaResult {
        let taken = self.pool.state.limits.take(self.pool.location.device, size);
        taken.map_err(|_| DriverError::OUT_OF_MEMORY)?;
        obtain().inspect_err(|_| self.refund(size))
    }

    fn refund(&self, size: u64) {
        self.pool.state.limits.refund(self.pool.location.device, size);
    }

    /// Physical memory on the pool's device. What `cuMemAlloc` hands out can be shared with other processes
    /// (`shareable`), reached by network cards (`reachable`), and used by the decompression hardware (`usage`).
    fn properties(&self, shareable: bool, reachable: bool, usage: u16) -> CUmemAllocationProp {
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
            properties.allocFlags.usage = usage;
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
        self.pool.granted.fetch_or(new.0, Ordering::AcqRel);
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
        let properties = self.properties(false, false, 0);
        // SAFETY: both pointers are to variables of this frame.
        check(unsafe { next::cuMemGetAllocationGranularity(&mut granularity, &properties, MINIMUM_GRANULARITY) })?;
        match granularity {
            0 => Err(DriverError::NOT_SUPPORTED),
            granularity => Ok(granularity as u64),
        }
    }

    /// What the next layer tells of the device's memory.
    pub(super) fn information(&self) -> CudaResult<Available> {
        self.in_context(|| next::retried(next::information))
    }

    fn create_with(&self, size: u64, properties: &CUmemAllocationProp) -> CudaResult<u64> {
        let mut handle = 0;
        let create = || {
            // SAFETY: the pointer to the handle is to a variable of this frame, and the properties outlive the call.
            let created = unsafe { next::cuMemCreate(&mut handle, size as usize, properties, 0) };
            next::of_request(check(created), size)
        };
        self.in_context(create)?;
        Ok(handle)
    }
}

pub(super) fn number_of(EventId(event): EventId) -> u64 {
    event & !OTHER_CONTEXT
}

pub(super) fn handle_of(event: EventId) -> CUevent {
    number_of(event) as CUevent
}

/// The answer of a call about the work of a context. Another context than the pool's own that is gone, or has a fault, has
/// no work: then the answer is `over`.
pub(super) fn unless_over<T>(is_own: bool, answer: CudaResult<T>, over: T) -> CudaResult<T> {
    answer.or_else(|problem| {
        if !is_own && problem.ends_work() {
            Ok(over)
        } else {
            Err(problem)
        }
    })
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

/// Another process may give memory back at the same moment, and hide the first piece. It seldom hides a large one.
const LARGE_BYTES: u64 = 64 << 20;

impl Growth {
    /// Some layers hook `cuMemAlloc`, but not `cuMemCreate` (HAMi-core before September 2025, nvshare, vcuda-controller), or
    /// forward it without counting. If `auto_growth` mapped memory there, a job would get more than the layer allows. The
    /// figure of a layer alone proves nothing: vcuda-controller's moves, because it asks NVML, and its refusal has its own count.
    ///
    /// So a layer with a limit is asked for more than that, once in a process, in two ways by which nothing can be obtained.
    /// A size that is no multiple of a granule is invalid to the driver, and one of more than the device runs out of memory
    /// (`granularity` in tests/assumptions). Another answer to one of them is the layer's own refusal; TGS refuses with 1.
    /// Free memory must also fall when memory is created. If no memory can be created, none escapes.
    fn is_counted(&self, granularity: u64) -> bool {
        static REFUSES: OnceBool = OnceBool::new();
        let free = || self.information().ok().map(|information| information.free);
        let falls_with = |size: u64| {
            let Some(before) = free() else { return true };
            let Ok(handle) = self.create(size) else { return true };
            let after = free();
            // Memory that cannot be released stays charged, and goes with its context.
            let _ = self.release(handle, size);
            after.is_none_or(|after| after + size / 2 <= before)
        };
        let falls = || falls_with(granularity) || falls_with(LARGE_BYTES.next_multiple_of(granularity));
        match self.in_context(|| Ok(limit_of_layer())) {
            Ok(Some((limit, total))) => {
                let beyond = total.next_multiple_of(granularity) + granularity;
                let ask = || -> CudaResult<bool> {
                    Ok(self.is_refused((limit + 2) | 1, DriverError::INVALID_VALUE)?
                        || self.is_refused(beyond, DriverError::OUT_OF_MEMORY)?)
                };
                // A layer may refuse what is beyond its limit, and not book what is within.
                REFUSES.get_or_try_init(ask).unwrap_or(false) && falls()
            }
            _ => falls(),
        }
    }

    /// Whether a layer refuses to create memory of a size that the driver itself refuses with this error. An error that says
    /// nothing of sizes is returned.
    fn is_refused(&self, size: u64, by_driver: DriverError) -> CudaResult<bool> {
        let (mut handle, properties) = (0, self.properties(false, false, 0));
        let asked = self.in_context(|| {
            // SAFETY: the pointer to the handle is to a variable of this frame, and the properties outlive the call.
            check(unsafe { next::cuMemCreate(&mut handle, size as usize, &properties, 0) })
        });
        if asked.is_ok() {
            // SAFETY: the handle was created above.
            let _ = self.whatever_context(|| check(unsafe { next::cuMemRelease(handle) }));
        }
        match asked {
            Ok(()) => Ok(false),
            Err(error @ DriverError(..=2)) => Ok(error != by_driver),
            Err(error) => Err(error),
        }
    }
}

impl DeviceMemory for Growth {
    fn allocate(&self, size: u64) -> CudaResult<u64> {
        let bytes = usize::try_from(size).map_err(|_| DriverError::OUT_OF_MEMORY)?;
        let mut address = 0;
        self.charged(size, || {
            self.in_context(|| {
                // SAFETY: the pointer is to a variable of this frame.
                next::of_request(check(unsafe { next::cuMemAlloc_v2(&mut address, bytes) }), size)
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
                let event = Event::FreeFailed {
                    address,
                    segment: Some(size),
                    result: problem.0,
                };
                self.pool.state.records.note(self.pool.location.device, event);
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
        // SAFETY: an event of the pool's context is live, because events are kept as long as that context. One of another
        // context that is gone is no event any more, and the call answers INVALID_HANDLE or so.
        let asked = relaxed(|| check(unsafe { next::cuEventQuery(handle_of(event)) }));
        unless_over(event.0 & OTHER_CONTEXT == 0, asked, ()).is_ok()
    }

    fn forget_event(&self, event: EventId) {
        match event.0 & OTHER_CONTEXT {
            0 => lock(&self.pool.events).push(event.0),
            _ => lock(&self.pool.unused_events_of_others).push(number_of(event)),
        }
    }

    fn available(&self) -> CudaResult<Available> {
        let actual = self.information()?;
        Ok(self.pool.state.limits.within(self.pool.location.device, actual))
    }

    fn granularity(&self) -> Option<u64> {
        match self.in_context(|| self.least_granularity()) {
            Ok(granularity) if self.is_counted(granularity) => Some(granularity),
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
        let _ = self.whatever_context(|| check(unsafe { next::cuMemAddressFree(address, size as usize) }));
    }

    fn create(&self, size: u64) -> CudaResult<u64> {
        let has = |attribute| self.attribute(attribute).is_ok_and(|value| value != 0);
        let reachable = has(RDMA_OF_VIRTUAL_MEMORY);
        let usage = if has(DECOMPRESSES) { DECOMPRESSION } else { 0 };
        // Memory that cannot be shared or reached is better than none.
        let kinds = [
            (true, reachable, usage),
            (true, reachable, 0),
            (true, false, 0),
            (false, false, 0),
        ];
        let (mut result, mut tried) = (Err(DriverError::NOT_SUPPORTED), None);
        self.charged(size, || {
            for kind in kinds {
                if tried.replace(kind) == Some(kind) {
                    continue;
                }
                let (shareable, reachable, usage) = kind;
                result = self.create_with(size, &self.properties(shareable, reachable, usage));
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
        self.whatever_context(|| check(unsafe { next::cuMemRelease(handle) }))?;
        self.refund(size);
        Ok(())
    }

    fn map(&self, address: u64, size: u64, handle: u64) -> CudaResult {
        // SAFETY: the address lies in a range that `reserve` returned, and the handle is live.
        self.in_context(|| check(unsafe { next::cuMemMap(address, size as usize, 0, handle, 0) }))
    }

    fn unmap(&self, address: u64, size: u64) -> CudaResult {
        // SAFETY: the range consists of whole mappings of ours. The policy unmaps clean memory only, so no work uses them.
        self.whatever_context(|| check(unsafe { next::cuMemUnmap(address, size as usize) }))
    }

    fn allow_access(&self, address: u64, size: u64) -> CudaResult {
        let peers = self.users().union(self.pool.granted());
        self.set_access(address, size, std::iter::once(self.device()).chain(peers.devices()))?;
        self.check_work()
    }

    fn mapped(&self, address: u64, size: u64, again: bool) {
        if !self.pool.maps_memory.swap(true, Ordering::AcqRel) {
            operations::memory_is_mapped();
        }
        self.gained(address, size, again);
    }

    fn is_part(&self, address: u64, size: u64, home: u64) {
        let event = Event::StitchPart { address, size, home };
        self.pool.state.records.note(self.pool.location.device, event);
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
