//! `libvramshim_hostguard.so`: refuses a single request for host memory that is larger than `VRAMSHIM_HOST_GUARD`.
//!
//! A length from a damaged message becomes `malloc(962 GB)`. Linux often grants such a request, and then ends processes once
//! the memory is touched. Here the caller gets `ENOMEM` at once, and standard error gets the call with its stack.
//!
//! This file has the exported functions. Below the bound each is a comparison and a tail call of the next function of its
//! name. Nothing here allocates, locks or panics. `next` finds the next functions, `bound` reads the variable, `report`
//! writes to standard error, and `library` tells `libvramshim.so`.

mod bound;
mod library;
mod next;
mod objects;
mod report;

use std::ffi::{c_int, c_void};
use std::ptr;

use next::Next;

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Aligned = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;

static MALLOC: Next = Next::of(c"malloc");
static CALLOC: Next = Next::of(c"calloc");
static REALLOC: Next = Next::of(c"realloc");
static MEMALIGN: Next = Next::of(c"memalign");
static ALIGNED_ALLOC: Next = Next::of(c"aligned_alloc");
static POSIX_MEMALIGN: Next = Next::of(c"posix_memalign");
static MMAP: Next = Next::of(c"mmap");

fn no_memory() -> *mut c_void {
    // SAFETY: the address of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    ptr::null_mut()
}

/// Declares a function with one size: it is refused, or the next function of the name serves it.
macro_rules! guarded {
    ($name:ident($($argument:ident: $type:ty),*), $size:expr, $static:ident as $function:ty) => {
        /// See malloc(3).
        ///
        /// # Safety
        /// That of the C function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> *mut c_void {
            if bound::refuses($size) {
                report::refused($static.name(), Some($size), bound::bytes());
                return no_memory();
            }
            match $static.address() {
                Some(next) => {
                    // SAFETY: the address is that of the next function of this name, which has this type (malloc(3)).
                    let next: $function = unsafe { std::mem::transmute::<usize, $function>(next) };
                    // SAFETY: the caller's own arguments go to the function that the caller meant.
                    unsafe { next($($argument),*) }
                }
                // The next function is being looked for. See `next`.
                None => no_memory(),
            }
        }
    };
}

guarded!(malloc(size: usize), size, MALLOC as Malloc);
guarded!(realloc(old: *mut c_void, size: usize), size, REALLOC as Realloc);
guarded!(memalign(alignment: usize, size: usize), size, MEMALIGN as Aligned);
guarded!(aligned_alloc(alignment: usize, size: usize), size, ALIGNED_ALLOC as Aligned);

/// See malloc(3). A product that does not fit into a number is too large in any case.
///
/// # Safety
/// That of the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let product = count.checked_mul(size);
    if bound::refuses(product.unwrap_or(usize::MAX)) {
        report::refused(CALLOC.name(), product, bound::bytes());
        return no_memory();
    }
    match CALLOC.address() {
        Some(next) => {
            // SAFETY: the address is that of the next `calloc`.
            let next: Calloc = unsafe { std::mem::transmute::<usize, Calloc>(next) };
            // SAFETY: the caller's own arguments go to the function that the caller meant.
            unsafe { next(count, size) }
        }
        None => no_memory(),
    }
}

/// See malloc(3): `realloc` of a product, or ENOMEM if that does not fit into a number. glibc has it since 2.26.
///
/// # Safety
/// That of the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(product) if !bound::refuses(product) => {
            // SAFETY: by contract of this function.
            unsafe { realloc(old, product) }
        }
        product => {
            if bound::refuses(usize::MAX) {
                report::refused(c"reallocarray", product, bound::bytes());
            }
            no_memory()
        }
    }
}

/// See posix_memalign(3), which returns the error and leaves errno alone.
///
/// # Safety
/// That of the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if bound::refuses(size) {
        report::refused(POSIX_MEMALIGN.name(), Some(size), bound::bytes());
        return libc::ENOMEM;
    }
    match POSIX_MEMALIGN.address() {
        Some(next) => {
            // SAFETY: the address is that of the next `posix_memalign`.
            let next: PosixMemalign = unsafe { std::mem::transmute::<usize, PosixMemalign>(next) };
            // SAFETY: the caller's own arguments go to the function that the caller meant.
            unsafe { next(out, alignment, size) }
        }
        None => libc::ENOMEM,
    }
}

/// Whether a mapping takes memory: anonymous, accessible, and not a mere reservation. CUDA, sanitizers, Go and Java reserve
/// terabytes with PROT_NONE or MAP_NORESERVE (mmap(2)).
fn takes_memory(protection: c_int, flags: c_int) -> bool {
    flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_NORESERVE == 0
        && protection & (libc::PROT_READ | libc::PROT_WRITE) != 0
}

/// See mmap(2).
///
/// # Safety
/// That of the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    if bound::refuses(length) && takes_memory(protection, flags) {
        report::refused(MMAP.name(), Some(length), bound::bytes());
        no_memory();
        return libc::MAP_FAILED;
    }
    match MMAP.address() {
        Some(next) => {
            // SAFETY: the address is that of the next `mmap`. `off_t` has 64 bits on the machines that are supported.
            let next: Mmap = unsafe { std::mem::transmute::<usize, Mmap>(next) };
            // SAFETY: the caller's own arguments go to the function that the caller meant.
            unsafe { next(address, length, protection, flags, fd, offset) }
        }
        None => {
            // SAFETY: the caller's own arguments; the kernel checks them.
            unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, fd, offset) as *mut c_void }
        }
    }
}

/// `mmap` under its other name; both are the same where `off_t` has 64 bits.
///
/// # Safety
/// That of the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: by contract of this function.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}
