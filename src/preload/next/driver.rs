//! The driver's own functions, behind the layer that answers our calls, and a layer in front of the library.
//!
//! The library calls the next layer. It asks the driver itself only for what a layer refuses to do with memory that the
//! layer never charged, and to learn what a layer charges.
//!
//! A layer in front is an object that the loader put before the library and that takes `cuMemAlloc` itself. The job calls
//! the layer, and the layer calls the library. So the layer does not see what the library asks of the next layer.

use std::ffi::c_void;
use std::mem;

use once_cell::race::OnceBox;

use super::elf::{self, Object, Position};
use super::signatures::{CUdeviceptr, CUstream, hooked};
use super::slot::Function;
use base::cuda::{CudaResult, DriverError, check};
use base::shortage::MemInfo;

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
pub fn information_behind_layer() -> Option<MemInfo> {
    let function = behind_layer(hooked::cuMemGetInfo_v2(), DRIVER)?;
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: the driver's function of this name has this signature (cuda.h). The pointers are to variables of this frame.
    let asked = check(unsafe {
        let ask: unsafe extern "C" fn(*mut usize, *mut usize) -> i32 = std::mem::transmute(function);
        ask(&mut free, &mut total)
    });
    let (total, free) = (total as u64, free as u64);
    asked.ok().map(|()| MemInfo { total, free })
}

/// The total of the current device that a layer shows, and that of the driver, if that is more: a limit of the layer.
pub fn limit_of_layer() -> Option<(u64, u64)> {
    let (total, shown) = (information_behind_layer()?.total, super::information().ok()?.total);
    (shown < total).then_some((shown, total))
}

type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize) -> i32;
type Free = unsafe extern "C" fn(CUdeviceptr) -> i32;

/// The layer, and its functions for linear memory.
pub struct Front {
    pub path: String,
    span: (usize, usize),
    pub allocate: Allocate,
    /// A layer without it never learns that memory left its book.
    pub free: Option<Free>,
}

/// The layer in front of the library, if there is one.
pub fn layer_in_front() -> Option<&'static Front> {
    static FOUND: OnceBox<Option<Front>> = OnceBox::new();
    // Objects that are loaded later come behind the library.
    FOUND.get_or_init(|| Box::new(find_in_front())).as_ref()
}

fn find_in_front() -> Option<Front> {
    // What is found is put on the heap afterwards, because the loader's list is locked meanwhile.
    let (object, allocate, free) = elf::find(|object| {
        let is_in_front = object.position == Position::BeforeOurs && !object.is_called(b"libcuda.so");
        let allocate = is_in_front.then(|| object.function(c"cuMemAlloc_v2")).flatten()?;
        Some((*object, allocate, object.function(c"cuMemFree_v2")))
    })?;
    // SAFETY: functions of these names have these signatures (cuda.h). The object was loaded at the start, and stays.
    let (allocate, free) = unsafe {
        (
            mem::transmute::<*mut c_void, Allocate>(allocate),
            free.map(|free| mem::transmute::<*mut c_void, Free>(free)),
        )
    };
    Some(Front {
        path: object.path().to_string_lossy().into_owned(),
        span: object.span(),
        allocate,
        free,
    })
}

impl Front {
    /// Whether this is an address of the layer.
    pub fn holds(&self, address: *const c_void) -> bool {
        (self.span.0..self.span.1).contains(&(address as usize))
    }
}
