//! An allocator for `torch.cuda.memory.CUDAPluggableAllocator` (`shim.h`): every tensor is a request of its own, and
//! PyTorch's cache is out of the way.

use std::ffi::c_void;
use std::ptr;

use crate::engine;
use crate::next::CUstream;
use base::api::Api;

/// `NULL` where there is no memory, or for 0 bytes. What is wrong is said on stderr: PyTorch asks for no reason.
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
            call.say_refused(bytes as u64, device, problem);
            ptr::null_mut()
        }
    }
}

/// Takes back what `vramshim_torch_alloc` returned; the stream is the one that used it.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_free(pointer: *mut c_void, _size: isize, device: i32, stream: CUstream) {
    if !pointer.is_null()
        && let Some(call) = engine::enter_running(Api::vramshim_torch_free)
    {
        call.free_for_stream(pointer as u64, device, stream as usize);
    }
}

/// For `set_record_stream_fn`: the block is used on a stream other than its own.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_record_stream(pointer: *mut c_void, _stream: CUstream) {
    if !pointer.is_null()
        && let Some(call) = engine::enter(Api::vramshim_torch_alloc)
    {
        call.used_on(pointer as u64);
    }
}
