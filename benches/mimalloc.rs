//! mimalloc as a contender of `pair.c`. mimalloc allocates host memory and is known to be fast, so its cost is the
//! lower bound.

use std::ffi::{c_char, c_int, c_ulonglong, c_void};
use std::ptr;

use libmimalloc_sys::{mi_free, mi_malloc};

const OUT_OF_MEMORY: c_int = 2;

#[unsafe(no_mangle)]
extern "C" fn pair_start() -> *const c_char {
    ptr::null()
}

/// # Safety
/// `address` can be written to.
#[unsafe(no_mangle)]
unsafe extern "C" fn pair_allocate(address: *mut c_ulonglong, size: usize) -> c_int {
    // SAFETY: mi_malloc accepts any size.
    let block = unsafe { mi_malloc(size) };
    // SAFETY: the caller promises that `address` can be written to.
    unsafe { *address = block as c_ulonglong };
    if block.is_null() { OUT_OF_MEMORY } else { 0 }
}

/// # Safety
/// `address` is from `pair_allocate` and is passed to this function once.
#[unsafe(no_mangle)]
unsafe extern "C" fn pair_release(address: c_ulonglong, _size: usize) -> c_int {
    // SAFETY: the caller promises that the block is from `mi_malloc` and is freed once.
    unsafe { mi_free(address as *mut c_void) };
    0
}
