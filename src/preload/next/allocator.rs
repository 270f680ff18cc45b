//! What the allocator behind the job's `malloc` says of itself.
//!
//! The allocator is that of the `free` which the job's calls reach, because a library that only guards `malloc` need not
//! have a `free`. If glibc has it, `mallinfo2` answers (mallinfo(3); glibc 2.33 and later). If the same object has a
//! `mallctl`, it is jemalloc (jemalloc(3), "MALLCTL NAMESPACE"). Others are not asked. The look-up loads no library.
//!
//! Both answers take the locks of the allocator. A job may hold one of them for any time: a thread that a debugger stopped
//! inside `malloc` does, and so does a signal handler that interrupted it. `mallinfo2` also visits every free chunk of an
//! arena under the lock of the arena (`int_mallinfo` in malloc/malloc.c of glibc), and other threads wait meanwhile. So only
//! a thread may ask for which no other thread waits.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::{mem, ptr};

use super::elf;
use super::symbols;

/// What an allocator said, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub is_jemalloc: bool,
    /// What the process obtained by `malloc` and has not freed.
    pub allocated: u64,
    /// What the allocator obtained from the kernel for it.
    pub mapped: u64,
}

/// `struct mallinfo2` of glibc's malloc.h.
#[repr(C)]
pub struct Mallinfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

type Mallinfo2Function = unsafe extern "C" fn() -> Mallinfo2;
type Mallctl = unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

/// How an allocator is asked.
#[derive(Clone, Copy)]
pub enum Allocator {
    Glibc(Mallinfo2Function),
    Jemalloc(Mallctl),
}

impl Allocator {
    /// The allocator of this process; `None` if it cannot be asked.
    pub fn find() -> Option<Allocator> {
        let free = symbols::global(c"free");
        let object = elf::object_of(free)?;
        if let Some(address) = object.function(c"mallctl") {
            // SAFETY: jemalloc's `mallctl` has this type (jemalloc(3)), and no other allocator has a function of this name.
            return Some(Allocator::Jemalloc(unsafe {
                mem::transmute::<*mut c_void, Mallctl>(address)
            }));
        }
        if !object.is_called(b"libc.so") {
            return None;
        }
        let address = object.function(c"mallinfo2")?;
        // SAFETY: glibc's `mallinfo2` has this type (mallinfo(3)).
        Some(Allocator::Glibc(unsafe {
            mem::transmute::<*mut c_void, Mallinfo2Function>(address)
        }))
    }

    /// Asks. Waits for every thread that is in the allocator. `None` if it does not answer.
    pub fn ask(self) -> Option<Figures> {
        match self {
            Allocator::Glibc(mallinfo2) => {
                // SAFETY: the call takes nothing.
                let told = unsafe { mallinfo2() };
                // Chunks that were mapped one by one are in `hblkhd`, and in no arena.
                Some(Figures {
                    is_jemalloc: false,
                    allocated: told.uordblks.saturating_add(told.hblkhd) as u64,
                    mapped: told.arena.saturating_add(told.hblkhd) as u64,
                })
            }
            Allocator::Jemalloc(mallctl) => {
                // The figures are those of the last epoch, so a new one begins first.
                let mut epoch = 1u64;
                let (new, length) = ((&raw mut epoch).cast(), mem::size_of::<u64>());
                // SAFETY: `epoch` takes a number of 64 bits as new value, and nothing is read.
                if unsafe { mallctl(c"epoch".as_ptr(), ptr::null_mut(), ptr::null_mut(), new, length) } != 0 {
                    return None;
                }
                Some(Figures {
                    is_jemalloc: true,
                    allocated: read(mallctl, c"stats.allocated")?,
                    mapped: read(mallctl, c"stats.mapped")?,
                })
            }
        }
    }
}

/// A figure of type `size_t`.
fn read(mallctl: Mallctl, name: &CStr) -> Option<u64> {
    let (mut value, mut length) = (0usize, mem::size_of::<usize>());
    let (to, length_of) = ((&raw mut value).cast(), &raw mut length);
    // SAFETY: the name is a C string, and both pointers are to variables of this frame. No new value is given.
    let answer = unsafe { mallctl(name.as_ptr(), to, length_of, ptr::null_mut(), 0) };
    (answer == 0).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::Allocator;

    #[test]
    fn glibc_says_what_is_allocated() {
        let allocator = Allocator::find().expect("glibc serves the malloc of this test");
        let before = allocator.ask().unwrap();
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = allocator.ask().unwrap();
        assert!(!after.is_jemalloc && after.mapped >= after.allocated, "{after:?}");
        assert!(after.allocated >= before.allocated + (60 << 20), "{before:?} {after:?}");
        drop(held);
    }
}
