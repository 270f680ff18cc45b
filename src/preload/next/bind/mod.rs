//! Binds the library's references at its first use, instead of at the start of the process.
//!
//! A process pays for each pointer in our data at its start: the loader writes the pointer, and the page becomes the
//! process's own. It pays for each function of the C library that we use, too: the loader looks it up. Every process that
//! inherits the preload pays, though few use CUDA. So the program `vramshim-defer` (`defer.rs`) takes these references out of
//! the loader's table after the link. Until `bind` has run, such a pointer holds an address of the file, and such a function
//! is null. Each exported function calls `bind` before anything else (`abi/exported.rs`).
//!
//! What runs until then must do without these references: this module, and what `abi` does before `bind`. It may use plain
//! code of its own, and the names of `KEPT`, which the loader binds as ever.
//!
//! No thread waits for another. Each thread that finds the library unbound binds all of it, which changes nothing if it was
//! done before. So it works in a signal handler, and in a forked child whose parent was binding in another thread.
//!
//! A library that `vramshim-defer` has not changed was bound by the loader, and then `bind` does nothing. That is so on all
//! machines but x86-64.

#[cfg(target_arch = "x86_64")]
mod dynamic;
#[cfg(target_arch = "x86_64")]
mod marks;
#[cfg(target_arch = "x86_64")]
mod own;
#[cfg(target_arch = "x86_64")]
mod scope;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wanted;

#[cfg(target_arch = "x86_64")]
pub use lazy::{bind, function_behind_ours};

/// The loader binds everything.
#[cfg(not(target_arch = "x86_64"))]
pub fn bind() {}

#[cfg(not(target_arch = "x86_64"))]
pub fn function_behind_ours(_name: &std::ffi::CStr) -> Option<*mut std::ffi::c_void> {
    None
}

#[cfg(target_arch = "x86_64")]
mod lazy {
    use std::arch::asm;
    use std::ffi::{CStr, c_void};
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

    use super::marks::{self, Reference, Rela};
    use super::own::Own;
    use super::scope::Scope;
    use super::wanted::Wanted;

    /// Whether every reference is bound.
    static BOUND: AtomicBool = AtomicBool::new(false);

    /// The threads that are inside `bind_now`. In a forked child it may count a thread that the child does not have. Then the
    /// child never protects its data, and nothing else differs.
    static INSIDE: AtomicUsize = AtomicUsize::new(0);

    /// Binds the library, if that has not been done.
    #[inline(always)]
    pub fn bind() {
        if !BOUND.load(Ordering::Acquire) {
            bind_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn bind_now() {
        let own = Own::find();
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if !BOUND.load(Ordering::SeqCst) {
            let references = own.references();
            if !references.is_empty() {
                Scope::with(&own, |scope| {
                    references.iter().for_each(|one| bind_one(&own, scope, one))
                });
            }
            BOUND.store(true, Ordering::SeqCst);
        }
        // Whoever comes from now on finds the library bound, and does not write. So the last one to leave may protect the data.
        if INSIDE.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some((start, length)) = own.constant_data()
        {
            // If the kernel refuses, the data stay writable.
            // SAFETY: the pages hold constant data of ours and references that are bound, and nobody writes to them.
            unsafe { system_call(libc::SYS_mprotect, [start, length, libc::PROT_READ as usize]) };
        }
    }

    fn bind_one(own: &Own, scope: &Scope, rela: &Rela) {
        // SAFETY: `vramshim-defer` checked that it is an aligned word of our writable data, which the code up to here does not
        // use. Threads that bind at once use it as this atomic type alone.
        let place = unsafe { AtomicU64::from_ptr(own.at(rela.offset as usize) as *mut u64) };
        let (unbound, bound) = match marks::reference(rela.info) {
            Some(Reference::Own) => (rela.addend, own.at(rela.addend as usize) as u64),
            Some(Reference::Symbol(index)) => {
                let wanted = own.wanted(index);
                match scope.find(&wanted) {
                    Some(found) => (0, found as u64),
                    None if own.is_weak(index) => return,
                    None => refuse(&wanted),
                }
            }
            None => return,
        };
        // The file has the unbound value, which is no address of a running process. So if another thread has bound the library
        // meanwhile, and has changed this variable since, then its value stays.
        let _ = place.compare_exchange(unbound, bound, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends the process as the loader does if a symbol is missing. The loader has checked that the C library has every version
    /// that the library needs, so this only happens with a C library that lacks a function of its own version.
    fn refuse(wanted: &Wanted) -> ! {
        let name = wanted.name.to_bytes();
        for text in [
            b"libvramshim.so: symbol lookup error: undefined symbol: ".as_slice(),
            name,
            b"\n",
        ] {
            // SAFETY: the text is readable.
            unsafe { system_call(libc::SYS_write, [2, text.as_ptr() as usize, text.len()]) };
        }
        loop {
            // SAFETY: it ends the process.
            unsafe { system_call(libc::SYS_exit_group, [127, 0, 0]) };
        }
    }

    /// A system call that leaves `errno` as it is.
    ///
    /// # Safety
    /// As the system call.
    unsafe fn system_call(number: i64, [first, second, third]: [usize; 3]) -> isize {
        let result;
        // SAFETY: the kernel's calling convention; the rest by contract.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number => result,
                in("rdi") first, in("rsi") second, in("rdx") third,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        result
    }

    /// The function that a call would reach if the library were not loaded: the first one of this name behind ours. `None` if
    /// the library is bound or was not preloaded; then there are other ways to find it.
    pub fn function_behind_ours(name: &CStr) -> Option<*mut c_void> {
        if BOUND.load(Ordering::Acquire) {
            return None;
        }
        let own = Own::find();
        if own.references().is_empty() {
            return None;
        }
        let found = Scope::behind(&own)?.find(&Wanted::any_version(name))?;
        Some(ptr::with_exposed_provenance_mut(found))
    }
}
