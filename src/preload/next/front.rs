//! A layer in front of the library: an object that the loader put before it and that takes `cuMemAlloc` itself. The job calls
//! the layer, and the layer calls the library. So the layer does not see what the library asks of the next layer.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::AtomicPtr;

use super::elf::{self, Object, Position};
use super::signatures::CUdeviceptr;
use super::symbols::once;
use base::cuda::{CudaResult, check};

/// The layer, and its functions for linear memory.
pub struct Front {
    object: Object,
    allocate: *mut c_void,
    /// Null if the layer does not have the function.
    free: *mut c_void,
}

// SAFETY: the pointers are to functions of an object that was loaded at the start of the program and stays.
unsafe impl Send for Front {}
// SAFETY: as above.
unsafe impl Sync for Front {}

/// The layer in front of the library, if there is one.
pub fn layer_in_front() -> Option<&'static Front> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // Objects that are loaded later come behind the library.
    let found = once(&FOUND, || Box::into_raw(Box::new(find())).cast());
    // SAFETY: the pointer is to a value of this type, which is never freed or changed.
    unsafe { (*found.cast::<Option<Front>>()).as_ref() }
}

fn find() -> Option<Front> {
    elf::find(|object| {
        let is_in_front = object.position() == Position::BeforeOurs && !object.is_called(b"libcuda.so");
        let allocate = is_in_front.then(|| object.function(c"cuMemAlloc_v2")).flatten()?;
        Some(Front {
            object: *object,
            allocate,
            free: object.function(c"cuMemFree_v2").unwrap_or(ptr::null_mut()),
        })
    })
}

impl Front {
    pub fn path(&self) -> String {
        self.object.path().to_string_lossy().into_owned()
    }

    /// Whether this is an address of the layer.
    pub fn holds(&self, address: *const c_void) -> bool {
        self.object.holds(address as usize)
    }

    /// Whether the layer takes frees too, so that what it counts leaves its book.
    pub fn takes_frees(&self) -> bool {
        !self.free.is_null()
    }

    /// The layer's `cuMemAlloc`.
    ///
    /// # Safety
    /// As `cuMemAlloc`.
    pub unsafe fn allocate(&self, out: *mut CUdeviceptr, size: usize) -> CudaResult {
        // SAFETY: a function of this name has this signature (cuda.h); the rest by contract.
        check(unsafe {
            let function: unsafe extern "C" fn(*mut CUdeviceptr, usize) -> i32 = std::mem::transmute(self.allocate);
            function(out, size)
        })
    }

    /// The layer's `cuMemFree`. `takes_frees` says that it has one.
    ///
    /// # Safety
    /// As `cuMemFree`.
    pub unsafe fn free(&self, address: CUdeviceptr) -> CudaResult {
        debug_assert!(self.takes_frees());
        // SAFETY: a function of this name has this signature (cuda.h); the rest by contract.
        check(unsafe {
            let function: unsafe extern "C" fn(CUdeviceptr) -> i32 = std::mem::transmute(self.free);
            function(address)
        })
    }
}
