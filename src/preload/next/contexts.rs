//! Calls of the next layer that are made in a given context, and facts about contexts, devices and mapped memory.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::primary::active_primary_context;
use super::results::{retried, told};
use super::signatures::{self, CUcontext, CUmemAccessDesc, CUmemAllocationProp, CUstream, Handle};
use base::cuda::{CudaResult, LOCATION_DEVICE, check};
use base::shortage::MemInfo;

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;

/// The calling thread's current context; null if it has none.
#[inline]
pub fn current_context() -> CudaResult<CUcontext> {
    // SAFETY: the pointer is to a variable of `told`.
    told(ptr::null_mut(), |context| unsafe {
        signatures::cuCtxGetCurrent(context)
    })
}

/// Whether the job has created a green context at any time. Jobs that have not pay nothing for the questions below.
static GREEN: AtomicBool = AtomicBool::new(false);

/// The job is about to create a green context.
pub fn note_green_contexts() {
    GREEN.store(true, Ordering::Relaxed);
}

/// Whether there may be one.
#[inline]
pub fn has_green_contexts() -> bool {
    GREEN.load(Ordering::Relaxed)
}

/// The calling thread's current context, if that is the context of a green context.
pub fn current_green_context() -> Option<u64> {
    has_green_contexts().then(asked_for_green)?.ok()?
}

fn asked_for_green() -> CudaResult<Option<u64>> {
    let mut green = ptr::null_mut();
    // SAFETY: the null stream is one of the current context, and the pointer is to a variable of this frame.
    check(unsafe { signatures::cuStreamGetGreenCtx(ptr::null_mut(), &mut green) })?;
    if green.is_null() {
        return Ok(None);
    }
    Ok(Some(current_context()? as u64))
}

/// The context that owns the memory which the calling thread allocates. A green context has the address space of its
/// device's primary context, and its memory stays when it is destroyed (cuda.h 13.5, `cuCtxFromGreenCtx`). So the
/// memory belongs to the primary context. In all other contexts it belongs to the current one. Null if the thread has
/// none.
pub fn memory_context() -> CudaResult<CUcontext> {
    let context = current_context()?;
    if context.is_null() || !has_green_contexts() || asked_for_green()?.is_none() {
        return Ok(context);
    }
    Ok(active_primary_context(current_device()?).unwrap_or(context))
}

/// The context that owns the memory which is allocated in `context`.
pub fn owner_of(context: u64) -> u64 {
    if !has_green_contexts() {
        return context;
    }
    in_context(context, memory_context).map_or(context, |owner| owner as u64)
}

/// The context of a stream; 0 if the next layer does not say.
pub fn context_of_stream(handle: usize) -> u64 {
    // SAFETY: the stream is the job's own, and the pointer is to a variable of `told`.
    let asked = told(ptr::null_mut(), |context| unsafe {
        signatures::cuStreamGetCtx(handle as CUstream, context)
    });
    asked.map_or(0, |context| context as u64)
}

/// The free and total bytes of the current device, as the next layer tells them.
pub fn information() -> CudaResult<MemInfo> {
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: both pointers are to variables of this frame.
    check(unsafe { signatures::cuMemGetInfo_v2(&mut free, &mut total) })?;
    let (free, total) = (free as u64, total as u64);
    Ok(MemInfo { total, free })
}

/// The same of a device, if that is the current one; 0 if not, or if the next layer does not tell.
pub fn information_here(device: i16) -> MemInfo {
    let is_current = current_device() == Ok(i32::from(device));
    is_current.then(information).and_then(Result::ok).unwrap_or_default()
}

/// The same of a device, in a context of it. `None` if the device has none.
pub fn information_of(device: i16) -> Option<MemInfo> {
    if current_device() == Ok(i32::from(device)) {
        return information().ok();
    }
    in_context(active_primary_context(i32::from(device))? as u64, information).ok()
}

/// What the next layer answers for an attribute of a device.
pub fn device_attribute(device: i32, attribute: u32) -> CudaResult<i32> {
    // SAFETY: the pointer is to a variable of `told`.
    told(0, |value| unsafe {
        signatures::cuDeviceGetAttribute(value, attribute, device)
    })
}

/// The device of the current context.
pub fn current_device() -> CudaResult<i32> {
    // SAFETY: the pointer is to a variable of `told`.
    told(0, |device| unsafe { signatures::cuCtxGetDevice(device) })
}

/// Runs `work` with `context` current. The calling thread may have another context, or none.
pub fn in_context<T>(context: u64, work: impl FnOnce() -> CudaResult<T>) -> CudaResult<T> {
    let wanted = context as CUcontext;
    if current_context() == Ok(wanted) {
        return work();
    }
    let mut popped = ptr::null_mut();
    // SAFETY: the context is one that the next layer gave us.
    retried(|| check(unsafe { signatures::cuCtxPushCurrent_v2(wanted) }))?;
    let result = work();
    // SAFETY: this pops what was pushed above, and the pointer is to a variable of this frame.
    let _ = retried(|| check(unsafe { signatures::cuCtxPopCurrent_v2(&mut popped) }));
    result
}

/// Whether the next layer records events of whole contexts.
pub fn has_context_events() -> bool {
    signatures::called::cuCtxRecordEvent().get().is_some()
}

/// The device that a context belongs to.
pub fn device_of_context(context: u64) -> Option<i16> {
    in_context(context, current_device).ok().map(|device| device as i16)
}

/// Whether work of one device may be allowed to use memory of another.
pub fn can_access_peer(user: i32, owner: i32) -> bool {
    // SAFETY: the pointer is to a variable of `told`.
    told(0, |can| unsafe { signatures::cuDeviceCanAccessPeer(can, user, owner) }).is_ok_and(|can| can != 0)
}

/// How many devices this process sees.
pub fn device_count() -> i32 {
    // SAFETY: the pointer is to a variable of `told`.
    told(0, |count| unsafe { signatures::cuDeviceGetCount(count) }).unwrap_or(0)
}

/// Whether the next layer has memory mapped at `address`.
pub fn is_mapped(address: u64) -> CudaResult<bool> {
    // SAFETY: the pointer is to a variable of `told`, and the handle that is retained is released at once.
    unsafe {
        match told(0, |handle| {
            signatures::cuMemRetainAllocationHandle(handle, address as *mut c_void)
        }) {
            Ok(handle) => retried(|| check(signatures::cuMemRelease(handle))).map(|()| true),
            Err(problem) if problem.is_fault() => Err(problem),
            Err(_) => Ok(false),
        }
    }
}

/// Whether the next layer knows a handle.
pub fn is_handle(handle: Handle) -> CudaResult<bool> {
    // SAFETY: in this plain C structure zero is a value of every field.
    let properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a variable of `told`.
    let ask = |told: &mut _| unsafe { signatures::cuMemGetAllocationPropertiesFromHandle(told, handle) };
    match told(properties, ask) {
        Err(problem) if problem.is_fault() => Err(problem),
        known => Ok(known.is_ok()),
    }
}

/// Lets devices read and write a mapped range. The access of other devices stays as it is.
pub fn set_access(address: u64, size: u64, devices: impl Iterator<Item = i32>) -> CudaResult {
    let access: Vec<CUmemAccessDesc> = devices.map(access_from).collect();
    // SAFETY: the descriptions outlive the call.
    check(unsafe { signatures::cuMemSetAccess(address, size as usize, access.as_ptr(), access.len()) })
}

/// Access for reading and writing from a device.
fn access_from(device: i32) -> CUmemAccessDesc {
    // SAFETY: in this plain C structure zero is a value of every field. The enums are written as the numbers they are.
    unsafe {
        let mut access: CUmemAccessDesc = std::mem::zeroed();
        (&raw mut access.flags).cast::<u32>().write(READ_WRITE);
        let location = &raw mut access.location;
        (&raw mut (*location).type_).cast::<u32>().write(LOCATION_DEVICE);
        (*location).id = device;
        access
    }
}

/// The name of a device; empty if the next layer does not tell.
pub fn device_name(device: i32) -> String {
    let mut name = [0u8; 256];
    // SAFETY: the length is one byte less than the buffer's, so a NUL always ends the name.
    unsafe { signatures::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, device) };
    CStr::from_bytes_until_nul(&name).map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
