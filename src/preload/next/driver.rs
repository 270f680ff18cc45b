//! The driver's own functions, behind the layer that answers our calls.
//!
//! The library calls the next layer. It asks the driver itself only for what a layer refuses to do with memory that the
//! layer never charged, and to learn what a layer charges.

use std::ffi::c_void;
use std::mem;

use super::elf::{self, Object};
use super::signatures::{CUdeviceptr, CUstream, hooked};
use super::slot::Function;
use base::cuda::{CudaResult, DriverError, check};

/// How the file of the driver begins.
const DRIVER: &[u8] = b"libcuda.so";

/// The driver's own function of a library whose file begins with `library`, if a layer answers for it. A layer in place of
/// the library opens the driver's itself, so of several objects with the name the driver's is the one that was loaded last.
pub(super) fn behind_layer(function: Function, library: &[u8]) -> Option<*mut c_void> {
    let layer = elf::object_of(function.get()?)?.span();
    let mut last = None;
    elf::find(|object: &Object| {
        if !object.is_ours()
            && object.is_called(library)
            && let Some(address) = object.function(function.name)
        {
            last = Some((object.span(), address));
        }
        None::<()>
    });
    last.filter(|(span, _)| *span != layer).map(|(_, address)| address)
}

/// Whether a layer answers this function.
pub fn is_of_layer(function: Function) -> bool {
    behind_layer(function, DRIVER).is_some()
}

/// The driver's own `cuMemFree`, or `cuMemFreeAsync` if a stream is given.
///
/// # Safety
/// As `cuMemFree` and `cuMemFreeAsync`. No layer may have the memory on its books.
pub unsafe fn free_behind_layer(address: CUdeviceptr, stream: Option<CUstream>) -> CudaResult {
    let function = stream.map_or(hooked::cuMemFree_v2(), |_| hooked::cuMemFreeAsync());
    let function = behind_layer(function, DRIVER).ok_or(DriverError::NOT_FOUND)?;
    // SAFETY: the driver's functions of these names have these signatures (cuda.h); the rest by contract.
    check(unsafe {
        match stream {
            None => mem::transmute::<*mut c_void, unsafe extern "C" fn(CUdeviceptr) -> i32>(function)(address),
            Some(stream) => {
                let free: unsafe extern "C" fn(CUdeviceptr, CUstream) -> i32 = mem::transmute(function);
                free(address, stream)
            }
        }
    })
}

/// The free and total bytes of the current device, as the driver itself tells them; `None` without a layer.
pub fn information_behind_layer() -> Option<(u64, u64)> {
    let function = behind_layer(hooked::cuMemGetInfo_v2(), DRIVER)?;
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: the driver's function of this name has this signature (cuda.h). The pointers are to variables of this frame.
    let asked = check(unsafe {
        let ask: unsafe extern "C" fn(*mut usize, *mut usize) -> i32 = std::mem::transmute(function);
        ask(&mut free, &mut total)
    });
    asked.ok().map(|()| (free as u64, total as u64))
}
