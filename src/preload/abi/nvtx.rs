//! Marks of jobs that are annotated with NVTX. NVTX loads the library that the variable `NVTX_INJECTION64_PATH` names,
//! and calls its `InitializeInjectionNvtx2` with a function that gives access to the tables of NVTX's functions.
//!
//! Each copy of NVTX in a process (its code is in headers) does so. Names of categories, threads and resources are not
//! kept. A mark in a domain has the domain's name in front: `domain: text`.
//!
//! Source: the headers of NVTX 3 (`nvtxDetail/nvtxTypes.h`, `nvToolsExt.h`), as in the wheel nvidia-nvtx-cu12 12.9.79.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::engine::marks;
use base::api::Api;

type Function = *const c_void;

/// `NvtxExportTableCallbacks`
#[repr(C)]
struct Callbacks {
    size: usize,
    module_functions: Option<unsafe extern "C" fn(c_int, *mut *mut *mut Function, *mut u32) -> c_int>,
}

/// `nvtxEventAttributes_t`
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

const ASCII: i32 = 1;
const UNICODE: i32 = 2;
const REGISTERED: i32 = 3;

/// `NVTX_NO_PUSH_POP_TRACKING`
const NO_RANGE: c_int = -2;

/// A longer text is not read to its end.
const LONGEST_TEXT: usize = 1024;
/// Texts and domains of a process that are kept. A job that registers more gets no names for the others.
const MOST_REGISTERED: usize = 1 << 16;

/// A domain or a registered text, which NVTX refers to by its address.
struct Registered(Vec<u8>);

fn register(text: Vec<u8>) -> *const Registered {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    match COUNT.fetch_add(1, Relaxed) {
        // NVTX may use it until the process ends.
        ..MOST_REGISTERED => Box::leak(Box::new(Registered(text))),
        _ => ptr::null(),
    }
}

/// # Safety
/// `text` is null or a string with a NUL.
unsafe fn narrow<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: by contract.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// # Safety
/// `text` is null or a string of `wchar_t` with a NUL.
unsafe fn wide(text: *const u32) -> Vec<u8> {
    if text.is_null() {
        return Vec::new();
    }
    let letters = (0..LONGEST_TEXT)
        // SAFETY: the places up to the NUL are readable by contract, and none behind it is read.
        .map(|place| unsafe { *text.add(place) })
        .take_while(|&letter| letter != 0)
        .map(|letter| char::from_u32(letter).unwrap_or(char::REPLACEMENT_CHARACTER));
    letters.collect::<String>().into_bytes()
}

/// The text of an event, with the name of its domain.
///
/// # Safety
/// `domain` and `attributes` are null or what NVTX passes.
unsafe fn message(domain: *const Registered, attributes: *const Attributes) -> Vec<u8> {
    let mut text = Vec::new();
    // SAFETY: by contract the domain is one of ours, and the attributes are complete as far as their size says.
    unsafe {
        if let Some(domain) = domain.as_ref() {
            text.extend(&domain.0);
            text.extend(b": ");
        }
        let Some(attributes) = attributes
            .as_ref()
            .filter(|given| usize::from(given.size) >= size_of::<Attributes>())
        else {
            return text;
        };
        let message = attributes.message;
        match attributes.message_type {
            ASCII => text.extend(narrow(message.cast())),
            UNICODE => text.extend(wide(message.cast())),
            REGISTERED => text.extend(message.cast::<Registered>().as_ref().map_or(&b""[..], |known| &known.0)),
            _ => {}
        }
    }
    text
}

fn level(ranges: usize) -> c_int {
    c_int::try_from(ranges).unwrap_or(c_int::MAX)
}

fn mark(text: impl AsRef<[u8]>) {
    marks::instant(Api::nvtxMark, text.as_ref());
}

fn start(text: impl AsRef<[u8]>) -> u64 {
    marks::start(Api::nvtxRangeStart, text.as_ref())
}

fn push(domain: *const Registered, text: impl AsRef<[u8]>) -> c_int {
    level(marks::push(Api::nvtxRangePush, domain as usize, text.as_ref()))
}

/// Defines functions of NVTX that get a text.
macro_rules! with_text {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty { $body:expr })+) => {$(
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: NVTX passes the job's own arguments, which are what its documentation asks for.
            unsafe { $body }
        }
    )+};
}

with_text! {
    mark_ex(attributes: *const Attributes) -> () { mark(message(ptr::null(), attributes)) }
    mark_a(text: *const c_char) -> () { mark(narrow(text)) }
    mark_w(text: *const u32) -> () { mark(wide(text)) }
    domain_mark(domain: *const Registered, attributes: *const Attributes) -> () { mark(message(domain, attributes)) }
    start_ex(attributes: *const Attributes) -> u64 { start(message(ptr::null(), attributes)) }
    start_a(text: *const c_char) -> u64 { start(narrow(text)) }
    start_w(text: *const u32) -> u64 { start(wide(text)) }
    domain_start(domain: *const Registered, attributes: *const Attributes) -> u64 { start(message(domain, attributes)) }
    push_ex(attributes: *const Attributes) -> c_int { push(ptr::null(), message(ptr::null(), attributes)) }
    push_a(text: *const c_char) -> c_int { push(ptr::null(), narrow(text)) }
    push_w(text: *const u32) -> c_int { push(ptr::null(), wide(text)) }
    domain_push(domain: *const Registered, attributes: *const Attributes) -> c_int {
        push(domain, message(domain, attributes))
    }
    create_a(name: *const c_char) -> *const Registered {
        register(narrow(name).iter().copied().take(LONGEST_TEXT).collect())
    }
    create_w(name: *const u32) -> *const Registered { register(wide(name)) }
    register_a(_domain: *const Registered, text: *const c_char) -> *const Registered { create_a(text) }
    register_w(_domain: *const Registered, text: *const u32) -> *const Registered { create_w(text) }
}

extern "C" fn end(range: u64) {
    marks::end(Api::nvtxRangeEnd, range);
}

extern "C" fn domain_end(_: *const Registered, range: u64) {
    end(range);
}

extern "C" fn domain_pop(domain: *const Registered) -> c_int {
    marks::pop(Api::nvtxRangePop, domain as usize).map_or(NO_RANGE, level)
}

extern "C" fn pop() -> c_int {
    domain_pop(ptr::null())
}

/// `NVTX_CB_MODULE_CORE` and `NVTX_CB_MODULE_CORE2`, with the functions of each by their numbers.
fn modules() -> [(c_int, &'static [(usize, Function)]); 2] {
    macro_rules! functions {
        ($($number:literal $function:ident),+) => { &[$(($number, $function as Function)),+] };
    }
    [
        (
            1,
            functions!(1 mark_ex, 2 mark_a, 3 mark_w, 4 start_ex, 5 start_a, 6 start_w, 7 end, 8 push_ex, 9 push_a,
                       10 push_w, 11 pop),
        ),
        (
            5,
            functions!(1 domain_mark, 2 domain_start, 3 domain_end, 4 domain_push, 5 domain_pop, 10 register_a,
                       11 register_w, 12 create_a, 13 create_w),
        ),
    ]
}

/// NVTX begins to work in a library or program of the job. Returns 1 if its events come to us.
///
/// # Safety
/// `export_table` is null or NVTX's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    export_table: Option<unsafe extern "C" fn(u32) -> *const c_void>,
) -> c_int {
    const CALLBACKS: u32 = 1;
    let Some(export_table) = export_table else { return 0 };
    // SAFETY: NVTX's tables are as its headers say, and an entry is written only if the table has it.
    unsafe {
        let Some(callbacks) = export_table(CALLBACKS).cast::<Callbacks>().as_ref() else {
            return 0;
        };
        let Some(module_functions) = callbacks
            .module_functions
            .filter(|_| callbacks.size >= size_of::<Callbacks>())
        else {
            return 0;
        };
        for (module, functions) in modules() {
            let (mut table, mut size) = (ptr::null_mut(), 0u32);
            if module_functions(module, &mut table, &mut size) == 0 || table.is_null() {
                continue;
            }
            for &(number, function) in functions.iter().filter(|(number, _)| *number < size as usize) {
                let place = *table.add(number);
                if !place.is_null() {
                    *place = function;
                }
            }
        }
    }
    1
}
