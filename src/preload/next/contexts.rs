//! Calls of the next layer that are made in a given context, and facts about contexts and devices.

use std::ffi::CStr;
use std::ptr;

use super::signatures::{self, CUcontext, CUmemAccessDesc};
use base::cuda::{CudaResult, LOCATION_DEVICE, check};

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;

/// The calling thread's current context; null if it has none.
#[inline]
pub fn current_context() -> CudaResult<CUcontext> {
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is to a variable of this frame.
    check(unsafe { signatures::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

/// The device of the current context.
pub fn current_device() -> CudaResult<i32> {
    let mut device = 0;
    // SAFETY: the pointer is to a variable of this frame.
    check(unsafe { signatures::cuCtxGetDevice(&mut device) })?;
    Ok(device)
}

/// Runs `work` with `context` current. The calling thread may have another context, or none.
pub fn in_context<T>(context: u64, work: impl FnOnce() -> CudaResult<T>) -> CudaResult<T> {
    let wanted = context as CUcontext;
    if current_context() == Ok(wanted) {
        return work();
    }
    let mut popped = ptr::null_mut();
    // SAFETY: the context is one that the next layer gave us, and what is pushed here is popped here.
    unsafe {
        check(signatures::cuCtxPushCurrent_v2(wanted))?;
        let result = work();
        signatures::cuCtxPopCurrent_v2(&mut popped);
        result
    }
}

/// Whether the next layer records events of whole contexts.
pub fn has_context_events() -> bool {
    signatures::called::cuCtxRecordEvent.get().is_some()
}

/// The device that a context belongs to.
pub fn device_of_context(context: u64) -> Option<i16> {
    in_context(context, current_device).ok().map(|device| device as i16)
}

/// Access for reading and writing from a device.
pub fn access_from(device: i32) -> CUmemAccessDesc {
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
