//! `libvramshim_hostguard.so`: refuses a single request for host memory that is larger than `VRAMSHIM_HOST_GUARD`.
//!
//! A length from a damaged message becomes `malloc(962 GB)`. Linux often grants such a request, and then ends processes once
//! the memory is touched. Here the caller gets `ENOMEM` at once, and standard error gets the call with its stack.
//!
//! This file has the exported functions. Below the bound each is a comparison and a tail call of the next function of its
//! name. Nothing here allocates, locks or panics. `next` finds the next functions, `bound` reads the variable, and `report`
//! tells standard error and `libvramshim.so`.

mod bound;
mod next;
mod objects;
mod report;

use std::ffi::{c_int, c_void};
use std::ptr;

use next::Next;

fn no_memory() -> *mut c_void {
    // SAFETY: the address of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    ptr::null_mut()
}

/// Calls the next function of a name. While that is being looked for (see `next`), the answer is `$unknown`.
macro_rules! call_next {
    ($next:ident($($argument:ident: $type:ty),*) -> $result:ty, $unknown:expr) => {
        match $next.address() {
            Some(next) => {
                // SAFETY: the address is that of the next function of this name, which has this type (malloc(3), mmap(2)).
                // `off_t` has 64 bits on the machines that are supported.
                let next = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(next) };
                // SAFETY: the caller's own arguments go to the function that the caller meant.
                unsafe { next($($argument),*) }
            }
            None => $unknown,
        }
    };
}

/// Declares functions that ask for so many bytes: a request is refused with `$no_memory`, or the next function of the name
/// serves it. A product that does not fit into a number is too large in any case.
macro_rules! guarded {
    ($($name:ident $text:literal($($argument:ident: $type:ty),*) -> $result:ty, $size:expr, $no_memory:expr;)+) => {$(
        /// See malloc(3) and posix_memalign(3), which returns the error and leaves errno alone.
        ///
        /// # Safety
        /// That of the C function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static NEXT: Next = Next::new($text, false);
            let size: Option<usize> = $size;
            if bound::refuses(size.unwrap_or(usize::MAX)) {
                report::refused(NEXT.name, size, bound::bytes());
                return $no_memory;
            }
            call_next!(NEXT($($argument: $type),*) -> $result, $no_memory)
        }
    )+};
}

guarded! {
    malloc c"malloc"(size: usize) -> *mut c_void, Some(size), no_memory();
    calloc c"calloc"(count: usize, size: usize) -> *mut c_void, count.checked_mul(size), no_memory();
    realloc c"realloc"(old: *mut c_void, size: usize) -> *mut c_void, Some(size), no_memory();
    memalign c"memalign"(alignment: usize, size: usize) -> *mut c_void, Some(size), no_memory();
    aligned_alloc c"aligned_alloc"(alignment: usize, size: usize) -> *mut c_void, Some(size), no_memory();
    posix_memalign c"posix_memalign"(out: *mut *mut c_void, alignment: usize, size: usize) -> c_int, Some(size), libc::ENOMEM;
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

/// Whether a mapping takes memory: anonymous, accessible, and not a mere reservation. CUDA, sanitizers, Go and Java reserve
/// terabytes with PROT_NONE or MAP_NORESERVE (mmap(2)).
fn takes_memory(protection: c_int, flags: c_int) -> bool {
    flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_NORESERVE == 0
        && protection & (libc::PROT_READ | libc::PROT_WRITE) != 0
}

/// Declares `mmap` under its names, which are the same where `off_t` has 64 bits.
macro_rules! guarded_mmap {
    ($($name:ident)+) => {$(
        /// See mmap(2).
        ///
        /// # Safety
        /// That of the C function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64
        ) -> *mut c_void {
            static NEXT: Next = Next::new(c"mmap", false);
            if bound::refuses(length) && takes_memory(protection, flags) {
                report::refused(NEXT.name, Some(length), bound::bytes());
                no_memory();
                return libc::MAP_FAILED;
            }
            call_next!(
                NEXT(address: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64)
                    -> *mut c_void,
                // SAFETY: the caller's own arguments; the kernel checks them.
                unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, fd, offset) as *mut c_void }
            )
        }
    )+};
}

guarded_mmap! { mmap mmap64 }
