//! A layer in front of the library: an object that the loader put before it and that takes `cuMemAlloc` itself. The job calls
//! the layer, and the layer calls the library. So the layer does not see what the library asks of the next layer.

use std::ffi::c_void;
use std::mem;

use once_cell::race::OnceBox;

use super::elf::{self, Position};
use super::signatures::CUdeviceptr;

type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize) -> i32;
type Free = unsafe extern "C" fn(CUdeviceptr) -> i32;

/// The layer, and its functions for linear memory.
pub struct Front {
    path: String,
    span: (usize, usize),
    pub allocate: Allocate,
    /// A layer without it never learns that memory left its book.
    pub free: Option<Free>,
}

/// The layer in front of the library, if there is one.
pub fn layer_in_front() -> Option<&'static Front> {
    static FOUND: OnceBox<Option<Front>> = OnceBox::new();
    // Objects that are loaded later come behind the library.
    FOUND.get_or_init(|| Box::new(find())).as_ref()
}

fn find() -> Option<Front> {
    // What is found is put on the heap afterwards, because the loader's list is locked meanwhile.
    let (object, allocate, free) = elf::find(|object| {
        let is_in_front = object.position() == Position::BeforeOurs && !object.is_called(b"libcuda.so");
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
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether this is an address of the layer.
    pub fn holds(&self, address: *const c_void) -> bool {
        (self.span.0..self.span.1).contains(&(address as usize))
    }
}
