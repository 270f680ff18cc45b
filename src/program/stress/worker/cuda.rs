//! The driver's functions that a worker calls. Each call is noted while it is in progress.

use std::ffi::{CStr, c_int};
use std::sync::LazyLock;
use std::time::Instant;

use base::sync::lock;

use super::Thread;
use crate::driver::{Access, Library, NOT_FOUND, Properties};
use crate::stress::outcome::Fault;

impl Thread {
    /// Makes a call. `bytes` are those of a request, or 0.
    fn call(&self, name: &'static CStr, bytes: u64, function: impl FnOnce() -> i32) -> Result<(), Fault> {
        let call = name.to_str().unwrap_or_default().trim_end_matches("_v2");
        lock(&self.site.books).in_progress[self.number] = Some((call, Instant::now()));
        let code = function();
        let books = &mut *lock(&self.site.books);
        books.in_progress[self.number] = None;
        books.outcome.calls += 1;
        match code {
            0 => Ok(()),
            code => Err(Fault::answered(call, code, bytes)),
        }
    }
}

/// The driver, as a job loads it.
static DRIVER: LazyLock<Option<Library>> = LazyLock::new(|| Library::open(c"libcuda.so.1").ok());

macro_rules! functions {
    ($($method:ident $name:literal ($($argument:ident: $type:ty),*);)*) => {
        impl Thread {
            $(
                pub fn $method(&self, bytes: u64, $($argument: $type),*) -> Result<(), Fault> {
                    type Function = unsafe extern "C" fn($($type),*) -> i32;
                    static FOUND: LazyLock<Option<Function>> = LazyLock::new(|| {
                        // SAFETY: the signature is that of cuda.h.
                        unsafe { DRIVER.as_ref()?.function($name) }
                    });
                    self.call($name, bytes, || match *FOUND {
                        // SAFETY: the signature is that of cuda.h. The callers give memory that they hold, and
                        // pointers to variables that live until the call, or the work that it begins, is done.
                        Some(function) => unsafe { function($($argument),*) },
                        None => NOT_FOUND,
                    })
                }
            )*
        }
    };
}

// `usize` stands for handles: of contexts, streams and pools.
functions! {
    init c"cuInit" (flags: u32);
    retain c"cuDevicePrimaryCtxRetain" (out: &mut usize, device: c_int);
    set_current c"cuCtxSetCurrent" (context: usize);
    wait c"cuCtxSynchronize" ();
    info c"cuMemGetInfo_v2" (free: &mut usize, total: &mut usize);
    alloc c"cuMemAlloc_v2" (out: &mut u64, size: usize);
    free c"cuMemFree_v2" (address: u64);
    alloc_async c"cuMemAllocAsync" (out: &mut u64, size: usize, stream: usize);
    free_async c"cuMemFreeAsync" (address: u64, stream: usize);
    default_pool c"cuDeviceGetDefaultMemPool" (out: &mut usize, device: c_int);
    trim_pool c"cuMemPoolTrimTo" (pool: usize, keep: usize);
    reserve c"cuMemAddressReserve" (out: &mut u64, size: usize, alignment: usize, wanted: u64, flags: u64);
    create c"cuMemCreate" (out: &mut u64, size: usize, properties: &Properties, flags: u64);
    map c"cuMemMap" (address: u64, size: usize, offset: usize, handle: u64, flags: u64);
    set_access c"cuMemSetAccess" (address: u64, size: usize, access: &Access, count: usize);
    unmap c"cuMemUnmap" (address: u64, size: usize);
    release c"cuMemRelease" (handle: u64);
    unreserve c"cuMemAddressFree" (address: u64, size: usize);
    fill_words c"cuMemsetD32Async" (address: u64, word: u32, count: usize, stream: usize);
    read c"cuMemcpyDtoHAsync_v2" (to: *mut u8, from: u64, size: usize, stream: usize);
    create_stream c"cuStreamCreate" (out: &mut usize, flags: u32);
    wait_stream c"cuStreamSynchronize" (stream: usize);
}
