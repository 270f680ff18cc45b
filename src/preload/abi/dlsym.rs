//! The exported `dlsym` and `dlvsym`.
//!
//! Both are naked functions around a decision made in Rust. If the decision is an answer, the answer is returned. If it
//! is to pass the question on, the registers are restored and the code *jumps* to the next layer's function. That function
//! then sees the application's own return address, by which it answers `RTLD_NEXT` and `RTLD_DEFAULT`. After a call
//! instead of a jump, it would take this library for the caller.
//!
//! A question is passed on if its name is not in our table, or if our own code asks. For all others, the first rule that
//! applies decides:
//!
//! 1. The caller is behind us in load order and exports the name itself. It is a layer or the driver, and it looks for
//!    the function behind its own. The question is passed on. If the answer were our function, the caller would call us,
//!    and we would call the caller again, without end.
//! 2. No object but ours has the function. The answer is that the function does not exist: a preloaded library must not
//!    make a program believe that a CUDA runtime is there.
//! 3. The handle is `RTLD_NEXT`, and the caller is behind us. The normal search would miss our function, so our function
//!    is the answer.
//! 4. The handle is `RTLD_NEXT` or `RTLD_DEFAULT`. The question is passed on: the normal search finds our function if the
//!    caller can reach it.
//! 5. The handle is that of an object. The next layer is asked for the name. If it finds nothing, the question is passed
//!    on, so that the failure and `dlerror` are the usual ones. If it finds a function in front of us,
//!    that of one of several runtimes, or that of an object in a namespace of its own (`dlmopen(3)`), the question is passed on
//!    as well: what lies behind us is another copy of that object. Otherwise our function is the answer.
//!
//! Whatever its handle, a `dlvsym` question skips rules 3 and 4 and is decided by rule 5. Our functions carry no version,
//! so the normal search would not find them. If a layer in front of us asks `dlvsym` for the next `dlsym` or `dlvsym`,
//! ours is the answer.
//!
//! On this path nothing is locked, allocated, logged or thread-local, and nothing can panic. It runs in constructors, in
//! signal handlers, in children of `vfork`, and under any lock that a caller holds.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::{mem, ptr};

use libc::{LM_ID_BASE, Lmid_t, RTLD_DEFAULT, RTLD_DI_LMID, RTLD_NEXT};

use super::table::Entry;
use crate::next::elf::{self, Position};
use crate::next::{runtimes, symbols};

/// A decision. If `go_on` is null, the caller gets `value`. A null `go_on` can also mean that there is no next function.
/// Both architectures return the two words in registers.
#[repr(C)]
struct Decision {
    value: *mut c_void,
    go_on: *mut c_void,
}

impl Decision {
    fn answer(value: *const c_void) -> Self {
        Decision {
            value: value.cast_mut(),
            go_on: ptr::null_mut(),
        }
    }
}

/// A question and its caller.
struct Question {
    handle: *mut c_void,
    name: *const c_char,
    /// `None` if `dlsym` is asked, which has no version.
    version: Option<*const c_char>,
    caller: *const c_void,
}

impl Question {
    /// Decides the question.
    ///
    /// # Safety
    /// Handle, name and version keep the contract of `dlsym` or `dlvsym`; the name may be null.
    unsafe fn decide(self) -> Decision {
        let go_on = Decision {
            value: ptr::null_mut(),
            go_on: match self.version {
                None => symbols::next_dlsym(),
                Some(_) => symbols::next_dlvsym(),
            },
        };
        if self.name.is_null() {
            return go_on;
        }
        // SAFETY: the name is not null, so it is a C string by contract.
        let name = unsafe { CStr::from_ptr(self.name) };
        let Some(ours) = self.ours(name) else { return go_on };
        // Code outside every object, compiled at run time, counts as the application's.
        let caller = elf::object_of(self.caller);
        let behind_us = caller.is_some_and(|caller| caller.position == Position::BehindOurs);
        if caller.is_some_and(|caller| caller.is_ours() || behind_us && caller.exports(name)) {
            return go_on;
        }
        if self.version.is_none() && (self.handle == RTLD_DEFAULT || self.handle == RTLD_NEXT) {
            if !exists_besides_us(name) {
                return Decision::answer(symbols::behind_us(name));
            }
            if self.handle == RTLD_NEXT && behind_us {
                return Decision::answer(ours);
            }
            return go_on;
        }
        // SAFETY: the same contract.
        let found = unsafe {
            match self.version {
                None => symbols::symbol_in(self.handle, name),
                Some(version) => symbols::versioned_symbol_in(self.handle, name, version),
            }
        };
        if found.is_null() {
            return go_on;
        }
        match elf::object_of(found).map(|object| object.position) {
            Some(Position::BeforeOurs) => go_on,
            // The handle was that of the whole program, or ours.
            Some(Position::Ours) if !exists_besides_us(name) => Decision::answer(symbols::behind_us(name)),
            Some(Position::Ours) => Decision::answer(ours),
            Some(Position::BehindOurs) if runtimes::depends_on_caller(name) => go_on,
            _ if self.is_in_another_namespace() => go_on,
            Some(Position::BehindOurs) | None => {
                symbols::note_driver_function(name, found);
                Decision::answer(ours)
            }
        }
    }

    /// Our function of this name, if we have one for this caller. Nearly every question ends here.
    fn ours(&self, name: &CStr) -> Option<*const c_void> {
        match name.to_bytes() {
            bytes @ ([b'c', b'u', ..] | [b'n', b'v', b'm', b'l', ..]) => super::entry(bytes).map(Entry::ours),
            b"dlsym" if self.is_from_a_layer_in_front() => Some(dlsym as *const c_void),
            b"dlvsym" if self.is_from_a_layer_in_front() => Some(dlvsym as *const c_void),
            _ => None,
        }
    }

    /// Whether the handle is that of an object in another namespace than ours. Asked only of a handle that the loader has
    /// accepted.
    fn is_in_another_namespace(&self) -> bool {
        type Dlinfo = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
        let is_of_an_object = self.handle != RTLD_DEFAULT && self.handle != RTLD_NEXT;
        let Some(dlinfo) = is_of_an_object.then(|| elf::next_function(c"dlinfo")).flatten() else {
            return false;
        };
        let mut namespace: Lmid_t = LM_ID_BASE;
        // SAFETY: the function of this name has this type (dlinfo(3)). The handle is valid, and the answer is one number.
        let result = unsafe {
            let dlinfo = mem::transmute::<*mut c_void, Dlinfo>(dlinfo);
            dlinfo(self.handle, RTLD_DI_LMID, (&raw mut namespace).cast())
        };
        result == 0 && namespace != LM_ID_BASE
    }

    fn is_from_a_layer_in_front(&self) -> bool {
        let in_front = || elf::object_of(self.caller).is_some_and(|caller| caller.position == Position::BeforeOurs);
        self.version.is_some() && self.handle == RTLD_NEXT && in_front()
    }
}

fn exists_besides_us(name: &CStr) -> bool {
    // An object that was loaded with RTLD_LOCAL is found only in the loader's whole list. A forked child cannot ask for
    // the list, and is given our function.
    !symbols::behind_us(name).is_null()
        || symbols::in_forked_child()
        || elf::find(|object| (!object.is_ours() && object.exports(name)).then_some(())).is_some()
}

/// Decides a question to `dlvsym`, or to `dlsym`, which has no version.
unsafe extern "C" fn decide<const HAS_VERSION: bool>(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *const c_void,
) -> Decision {
    let version = HAS_VERSION.then_some(version);
    // SAFETY: the application's own arguments keep the contract of `dlsym` or `dlvsym`.
    unsafe {
        Question {
            handle,
            name,
            version,
            caller,
        }
        .decide()
    }
}

/// Calls `decide` with the caller's three arguments and its address. Then returns the answer, or jumps to the next function
/// with these arguments. `dlsym` has two arguments; what is in the register of a third one is kept all the same.
#[cfg(target_arch = "x86_64")]
macro_rules! answer_or_go_on {
    ($decide:path) => {
        naked_asm!(
            ".cfi_startproc",
            "mov rcx, [rsp]", // the return address: the caller
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "call {decide}",
            "mov r11, rdx",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2: ret",
            ".cfi_endproc",
            decide = sym $decide,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! answer_or_go_on {
    ($decide:path) => {
        naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-48]!",
            ".cfi_adjust_cfa_offset 48",
            ".cfi_rel_offset x29, 0",
            ".cfi_rel_offset x30, 8",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "mov x3, x30", // the return address: the caller
            "bl {decide}",
            "mov x16, x1",
            "cbz x16, 2f",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "2: ldp x29, x30, [sp], #48",
            ".cfi_adjust_cfa_offset -48",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x16, 3f",
            "br x16",
            "3: ret",
            ".cfi_endproc",
            decide = sym $decide,
        )
    };
}

/// # Safety
/// As `dlsym(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    answer_or_go_on!(decide::<false>)
}

/// # Safety
/// As `dlvsym(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    answer_or_go_on!(decide::<true>)
}
