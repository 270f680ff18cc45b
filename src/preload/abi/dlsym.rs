//! The exported `dlsym` and `dlvsym`.
//!
//! Both are naked functions around a decision made in Rust. Either the decision is an answer, and that is returned; or
//! it is where to go on, and the registers are put back and the next layer's function is *jumped* to: it sees the
//! application's own return address, and that is what `RTLD_NEXT` and `RTLD_DEFAULT` are answered by. A forwarded call
//! would make us the one who asks.
//!
//! What is decided, for a name in our table (every other name goes on, as does everything our own code asks):
//!
//! - A caller behind us that exports the name is a layer, or the driver, asking for what is below it: goes on. Were it
//!   given our function it would call us, we it, and so on. One in front of us has us below it, and is given us.
//! - A handle: the next layer is asked whether the name exists there. Where it does not, the question goes on, so that
//!   the failure and `dlerror` are the real ones; where the answer is an interposer in front of us, that is the answer;
//!   else it is our function.
//! - `RTLD_DEFAULT`, `RTLD_NEXT`: the real search finds our function by itself if it is what the caller would reach. A
//!   caller behind us that asks for the next is past us already, and is given ours. But where no object besides us has
//!   the function, it is not there: preloading must not make a program believe in a runtime it does not have.
//! - `dlvsym`: our functions carry no version, so the real search passes them by. Whatever the handle, the next layer is
//!   asked as above; and one in front of us that asks for the next `dlsym` (with a version: how else) is given ours.
//!
//! On this path nothing is locked, allocated, logged or thread-local, and nothing can panic: it runs in constructors,
//! in signal handlers, in children of `vfork`, and under every lock that anybody holds while asking.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use libc::{RTLD_DEFAULT, RTLD_NEXT};

use super::Entry;
use crate::next::elf::{self, Object, Place};
use crate::next::symbols;
use journal::format::Route;

/// Where `go_on` is null (there may be no next function), `value` is what the caller gets. Two words come back in registers on both architectures.
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

/// What we answer with.
#[derive(Clone, Copy)]
enum Ours {
    Hooked(&'static Entry),
    /// `dlsym` or `dlvsym` itself.
    LookUp(*const c_void),
}

/// What was asked, by whom, and who is to be asked next.
struct Question {
    handle: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
    next: *mut c_void,
    versioned: bool,
}

impl Question {
    /// `ask` puts it to the next layer.
    ///
    /// # Safety
    /// The name is null or a C string.
    unsafe fn decide(self, ask: impl FnOnce(&CStr) -> *mut c_void) -> Decision {
        let go_on = Decision {
            value: ptr::null_mut(),
            go_on: self.next,
        };
        if self.name.is_null() {
            return go_on;
        }
        // SAFETY: not null, and by contract a C string.
        let name = unsafe { CStr::from_ptr(self.name) };
        let Some(ours) = self.ours(name) else { return go_on };
        // Code outside every object (compiled at run time) counts as the application's.
        let caller = elf::object_of(self.caller);
        let behind_us = caller.is_some_and(|caller| caller.place() == Place::BehindOurs);
        if caller.is_some_and(|caller| caller.is_ours() || behind_us && caller.exports(name)) {
            return go_on;
        }
        if !self.versioned && (self.handle == RTLD_DEFAULT || self.handle == RTLD_NEXT) {
            return match exists_besides_us(name) {
                false => Decision::answer(symbols::behind_us(name)),
                true if self.handle == RTLD_NEXT && behind_us => self.hand_out(ours),
                true => {
                    // The real search finds ours, unless somebody in front has the function too.
                    let found_before_ours =
                        |object: &Object| (object.place() == Place::BeforeOurs && object.exports(name)).then_some(());
                    if !symbols::in_forked_child() && elf::find(found_before_ours).is_none() {
                        self.hand_out(ours);
                    }
                    go_on
                }
            };
        }
        let found = ask(name);
        if found.is_null() {
            return go_on;
        }
        match elf::object_of(found).map(|object| object.place()) {
            Some(Place::BeforeOurs) => go_on,
            // The handle of the whole program, or our own.
            Some(Place::Ours) if !exists_besides_us(name) => Decision::answer(symbols::behind_us(name)),
            Some(Place::Ours) => self.hand_out(ours),
            Some(Place::BehindOurs) | None => {
                symbols::saw(name, found);
                self.hand_out(ours)
            }
        }
    }

    /// Our function of this name, if it is one that we answer for. Nearly every question ends here.
    fn ours(&self, name: &CStr) -> Option<Ours> {
        match name.to_bytes() {
            bytes @ ([b'c', b'u', ..] | [b'n', b'v', b'm', b'l', ..]) => super::entry(bytes).map(Ours::Hooked),
            b"dlsym" if self.is_from_a_layer_in_front() => Some(Ours::LookUp(dlsym as *const c_void)),
            b"dlvsym" if self.is_from_a_layer_in_front() => Some(Ours::LookUp(dlvsym as *const c_void)),
            _ => None,
        }
    }

    fn hand_out(&self, ours: Ours) -> Decision {
        let route = if self.versioned { Route::Dlvsym } else { Route::Dlsym };
        Decision::answer(match ours {
            Ours::Hooked(entry) => entry.hand_out(route),
            Ours::LookUp(function) => function,
        })
    }

    fn is_from_a_layer_in_front(&self) -> bool {
        let in_front = || elf::object_of(self.caller).is_some_and(|caller| caller.place() == Place::BeforeOurs);
        self.versioned && self.handle == RTLD_NEXT && in_front()
    }
}

fn exists_besides_us(name: &CStr) -> bool {
    // Where it is loaded RTLD_LOCAL, only the whole list tells; a forked child cannot ask, and is given our function.
    !symbols::behind_us(name).is_null()
        || symbols::in_forked_child()
        || elf::find(|object| (!object.is_ours() && object.exports(name)).then_some(())).is_some()
}

unsafe extern "C" fn decide_dlsym(handle: *mut c_void, name: *const c_char, caller: *const c_void) -> Decision {
    let question = Question {
        handle,
        name,
        caller,
        next: symbols::next_dlsym(),
        versioned: false,
    };
    // SAFETY: the application's arguments, under the contract of `dlsym`.
    unsafe { question.decide(|name| symbols::symbol_in(handle, name)) }
}

unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *const c_void,
) -> Decision {
    let question = Question {
        handle,
        name,
        caller,
        next: symbols::next_dlvsym(),
        versioned: true,
    };
    // SAFETY: the application's arguments, under the contract of `dlvsym`.
    unsafe { question.decide(|name| symbols::versioned_symbol_in(handle, name, version)) }
}

/// # Safety
/// As `dlsym(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "mov rdx, [rsp]", // the return address: the caller
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8", // a call needs the stack at a multiple of 16
        ".cfi_adjust_cfa_offset 8",
        "call {decide}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rdx, rdx",
        "jz 2f",
        "jmp rdx",
        "2: ret",
        ".cfi_endproc",
        decide = sym decide_dlsym,
    )
}

/// # Safety
/// As `dlvsym(3)`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
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
        decide = sym decide_dlvsym,
    )
}

/// # Safety
/// As `dlsym(3)`.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "mov x2, x30", // the return address: the caller
        "bl {decide}",
        "mov x16, x1",
        "cbz x16, 2f",
        "ldp x0, x1, [sp, #16]",
        "2: ldp x29, x30, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbz x16, 3f",
        "br x16",
        "3: ret",
        ".cfi_endproc",
        decide = sym decide_dlsym,
    )
}

/// # Safety
/// As `dlvsym(3)`.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
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
        decide = sym decide_dlvsym,
    )
}
