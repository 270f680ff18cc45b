//! An allocator for `torch.cuda.memory.CUDAPluggableAllocator` (`shim.h`). It replaces PyTorch's own cache, so that every
//! tensor is one request.

use std::ffi::c_void;
use std::ptr;

use crate::engine;
use crate::next::CUstream;
use base::api::Api;

/// Memory for a tensor; `NULL` for 0 bytes. Also `NULL` if the request fails: stderr then says why, because PyTorch
/// does not check for `NULL`.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_alloc(size: isize, device: i32, stream: CUstream) -> *mut c_void {
    let Ok(bytes @ 1..) = usize::try_from(size) else {
        return ptr::null_mut();
    };
    let Some(call) = engine::enter(Api::vramshim_torch_alloc) else {
        return ptr::null_mut();
    };
    match call.allocate_for_stream(bytes, device, stream as usize) {
        Ok(address) => address as *mut c_void,
        Err(problem) => {
            call.explain_refusal(bytes as u64, device, problem);
            ptr::null_mut()
        }
    }
}

/// Takes back memory that `vramshim_torch_alloc` returned. `stream` is the stream that used it.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_free(pointer: *mut c_void, _size: isize, device: i32, stream: CUstream) {
    if !pointer.is_null()
        && let Some(call) = engine::enter_running(Api::vramshim_torch_free)
    {
        call.free_for_stream(pointer as u64, device, stream as usize);
    }
}

/// PyTorch reports that a block is used on a stream other than its own (`set_record_stream_fn`).
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_record_stream(pointer: *mut c_void, stream: CUstream) {
    if !pointer.is_null()
        && let Some(call) = engine::enter(Api::vramshim_torch_alloc)
    {
        call.used_on_another_stream(pointer as u64, stream as usize);
    }
}
