//! An allocator for `torch.cuda.memory.CUDAPluggableAllocator`, and what PyTorch's own functions answer with it
//! (`shim.h`). It replaces PyTorch's own cache, so that every tensor is one request.
//!
//! If a request fails, `vramshim_torch_alloc` throws an exception of PyTorch's. It is a naked function around the
//! request in Rust: when the request has ended and its frame is gone, the naked function *jumps* to the function that
//! throws. So the exception passes through PyTorch's frames alone.

use std::arch::naked_asm;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::control::copy_out;
use crate::engine;
use crate::next::CUstream;
use crate::next::c10::{self, Thrown};
use base::api::Api;
use base::cancellation::Uncancelled;
use base::cuda::DriverError;
use base::identity::thread_number;

/// PyTorch refuses requests from 1 EiB on at once, and counts none of them (`malloc` in
/// `c10/cuda/CUDACachingAllocator.cpp`, PyTorch 2.12).
const REFUSED_BYTES: usize = 1 << 60;
const REFUSAL: &CStr = c"CUDA out of memory. Tried to allocate more than 1EB memory.";

/// What is called before an out-of-memory error is thrown, with the device and the bytes of the request.
type Observer = extern "C" fn(device: i32, bytes: u64);

/// The `Observer`, or null.
static OBSERVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

fn observe(device: i32, bytes: u64) {
    let observer = OBSERVER.load(Ordering::Acquire);
    if !observer.is_null() {
        // SAFETY: what is not null was an `Observer`, and stays callable until it is replaced (shim.h).
        let observer = unsafe { transmute::<*mut c_void, Observer>(observer) };
        observer(device, bytes);
    }
}

/// Memory for a tensor; null for 0 bytes. If the request fails, `thrown` says what to throw.
extern "C" fn allocate(size: isize, device: i32, stream: CUstream, thrown: &mut Thrown) -> *mut c_void {
    *thrown = Thrown::NOTHING;
    let Ok(bytes @ 1..) = usize::try_from(size) else {
        return ptr::null_mut();
    };
    if bytes >= REFUSED_BYTES {
        return refuse(thrown, DriverError::OUT_OF_MEMORY, REFUSAL);
    }
    let Some(call) = engine::enter_for_tensor(Api::vramshim_torch_alloc) else {
        *thrown = c10::runtime_error(c"vramshim serves no memory in this process, but is PyTorch's allocator");
        return ptr::null_mut();
    };
    match call.allocate_for_stream(bytes, device, stream as usize) {
        Ok(address) => address as *mut c_void,
        Err(problem) => {
            let _uncancelled = Uncancelled::begin();
            let reason = call.explain_refusal(bytes as u64, device, problem);
            let message = CString::new(reason).unwrap_or_default();
            // What the observer calls is the job's again.
            drop(call);
            if problem == DriverError::OUT_OF_MEMORY {
                observe(device, bytes as u64);
            }
            refuse(thrown, problem, &message)
        }
    }
}

fn refuse(thrown: &mut Thrown, problem: DriverError, message: &CStr) -> *mut c_void {
    *thrown = match problem {
        DriverError::OUT_OF_MEMORY => c10::out_of_memory_error(message),
        _ => c10::runtime_error(message),
    };
    if thrown.function.is_null() {
        base::say::error!("{}; the caller gets a null pointer", message.to_string_lossy());
    }
    ptr::null_mut()
}

/// Has `observer` called before `vramshim_torch_alloc` throws an out-of-memory error, in the thread that allocates;
/// null ends that. It replaces another one.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_observe(observer: *mut c_void) {
    OBSERVER.store(observer, Ordering::Release);
}

/// Memory for a tensor; `NULL` for 0 bytes. If the request fails, throws an exception of PyTorch's. `NULL` if PyTorch
/// is not loaded; stderr then says why.
///
/// # Safety
/// The caller can be unwound, as C++ code can.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vramshim_torch_alloc(size: isize, device: i32, stream: CUstream) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 56", // room for `Thrown`; a call needs the stack at a multiple of 16
        ".cfi_adjust_cfa_offset 56",
        "mov rcx, rsp",
        "call {allocate}",
        "mov r11, [rsp]",
        "mov rdi, [rsp + 8]",
        "mov rsi, [rsp + 16]",
        "mov rdx, [rsp + 24]",
        "mov rcx, [rsp + 32]",
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "test r11, r11",
        "jz 2f",
        "jmp r11",
        "2: ret",
        ".cfi_endproc",
        allocate = sym allocate,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vramshim_torch_alloc(size: isize, device: i32, stream: CUstream) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "sub sp, sp, #64",
        ".cfi_adjust_cfa_offset 64",
        "str x30, [sp, #48]",
        ".cfi_offset x30, -16",
        "mov x3, sp",
        "bl {allocate}",
        "ldr x16, [sp]",
        "ldr x30, [sp, #48]",
        ".cfi_restore x30",
        "cbz x16, 2f",
        "ldp x0, x1, [sp, #8]",
        "ldp x2, x3, [sp, #24]",
        "2:",
        "add sp, sp, #64",
        ".cfi_adjust_cfa_offset -64",
        "cbz x16, 3f",
        "br x16",
        "3: ret",
        ".cfi_endproc",
        allocate = sym allocate,
    )
}

/// Takes back memory that `vramshim_torch_alloc` returned. `stream` is the stream that used it.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_free(pointer: *mut c_void, size: isize, device: i32, stream: CUstream) {
    if !pointer.is_null()
        && let Some(call) = engine::enter_for_free_of_tensor(Api::vramshim_torch_free)
    {
        call.free_for_stream(pointer as u64, size.max(0) as u64, device, stream as usize);
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

/// `torch.cuda.empty_cache` (`set_reset_fn`): gives idle memory of all devices back.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_empty_cache() {
    if let Some(engine) = engine::running() {
        engine.release_idle_everywhere();
    }
}

/// `torch.cuda.set_per_process_memory_fraction` in bytes: what tensors of a device may hold together.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_allow(device: i32, bytes: u64) {
    if let Some(call) = engine::enter(Api::vramshim_torch_alloc) {
        call.engine.torch.figures.allow(device, bytes);
    }
}

/// A capture begins to allocate from the private pool `first`, `second` of PyTorch (`set_begin_allocate_to_pool`).
/// PyTorch passes a pair of numbers, which has the registers of two arguments, and a filter, which is not needed.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_begin_pool(device: i32, first: u64, second: u64, _filter: *mut c_void) {
    if let Some(call) = engine::enter(Api::vramshim_torch_alloc) {
        let graphs = &call.engine.torch.graphs;
        graphs.capture_begins((device, first, second), thread_number());
    }
}

/// The capture allocates from this pool no longer (`set_end_allocate_to_pool_fn`).
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_end_pool(device: i32, first: u64, second: u64) {
    if let Some(call) = engine::enter_running(Api::vramshim_torch_alloc) {
        let graphs = &call.engine.torch.graphs;
        graphs.capture_ends((device, first, second), thread_number());
    }
}

/// A graph that was captured with this pool is gone (`set_release_pool`).
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_release_pool(device: i32, first: u64, second: u64) {
    if let Some(call) = engine::enter_running(Api::vramshim_torch_free) {
        call.graph_gone((device, first, second));
    }
}

/// PyTorch uses another allocator from now on; its reports of streams go there.
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_replaced() {
    if let Some(engine) = engine::running() {
        engine.torch.reports_uses.store(false, Ordering::Relaxed);
    }
}

/// The figures of `torch.cuda.memory_stats_as_nested_dict` as JSON; the arguments and the result are as for
/// `vramshim_account`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_torch_stats(device: i32, buffer: *mut c_char, capacity: usize) -> usize {
    let text = engine::running().map_or_else(engine::no_torch_stats, |engine| engine.torch_stats(device));
    // SAFETY: by contract of `vramshim_account`.
    unsafe { copy_out(text.as_bytes(), buffer, capacity) }
}

/// The segments and blocks of `torch.cuda.memory_snapshot` as JSON; as for `vramshim_torch_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramshim_torch_snapshot(buffer: *mut c_char, capacity: usize) -> usize {
    let text = engine::running().map_or_else(|| "{\"segments\":[]}".to_owned(), |engine| engine.torch_snapshot());
    // SAFETY: by contract of `vramshim_account`.
    unsafe { copy_out(text.as_bytes(), buffer, capacity) }
}

/// `torch.cuda.reset_peak_memory_stats`
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_reset_peaks(device: i32) {
    if let Some(engine) = engine::running() {
        engine.torch_reset_peaks(device);
    }
}

/// `torch.cuda.reset_accumulated_memory_stats`
#[unsafe(no_mangle)]
pub extern "C" fn vramshim_torch_reset_sums(device: i32) {
    if let Some(engine) = engine::running() {
        engine.torch_reset_sums(device);
    }
}
