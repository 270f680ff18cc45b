//! Finds functions of the next layer: those that an application would reach if this library were not loaded. `runtimes`
//! finds those of the runtime.
//!
//! | function | where it is found |
//! |---|---|
//! | `dlsym`, `dlvsym` | in the first object behind ours in load order that exports it: a layer, else the C library |
//! | a driver function | what a layer's `dlsym` hands out for the driver library, loaded already or loaded now, because a layer may export functions that it keeps to itself; else in the global scope behind ours (a preloaded layer, or a driver that the program is linked with); else in the driver library |
//!
//! "The global scope behind ours" is `RTLD_NEXT`, asked from our own code. Load order alone is not enough: a library that
//! was loaded with `RTLD_LOCAL` is in the loader's list, but not in the global scope. The question goes to the C
//! library's `dlsym`, not to the next one, for two reasons. If a layer's `dlsym` forwards by a call, `RTLD_NEXT` starts
//! at that layer. And some layers refuse a second `RTLD_NEXT` for the same name. An address in our own object is never
//! an answer.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::{mem, ptr};

use libc::{RTLD_LOCAL, RTLD_NEXT, RTLD_NOLOAD, RTLD_NOW};

use super::elf::{self, Object, Position, once};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Whether `address` lies in our own object.
pub fn is_ours(address: *const c_void) -> bool {
    static LOW: AtomicUsize = AtomicUsize::new(0);
    static HIGH: AtomicUsize = AtomicUsize::new(0);
    if HIGH.load(Ordering::Acquire) == 0 {
        let (low, high) = elf::object_of((&raw const LOW).cast()).map_or((0, 1), |ours| ours.span());
        LOW.store(low, Ordering::Release);
        HIGH.store(high, Ordering::Release);
    }
    (LOW.load(Ordering::Acquire)..HIGH.load(Ordering::Acquire)).contains(&(address as usize))
}

/// Whether this process was forked from the one that first called this function. Then a thread that the child does not
/// have may hold the lock of the loader's list, and a thread that waits for it waits for ever.
pub fn in_forked_child() -> bool {
    static FIRST: AtomicI32 = AtomicI32::new(0);
    // SAFETY: has no preconditions.
    let this = unsafe { libc::getpid() };
    FIRST
        .compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire)
        .is_err_and(|first| first != this)
}

fn unless_ours(address: *mut c_void) -> *mut c_void {
    if is_ours(address) { ptr::null_mut() } else { address }
}

/// The function of the first object behind ours in load order. It may be asked for first in a forked child, whose parent had
/// locked the loader's list: so the search takes no lock if the C library has the function. (Before glibc 2.34 another
/// library has it.) If the library was not preloaded, the C library may come before it; then the first object of all that
/// has the function.
fn first_behind_us(name: &CStr) -> *mut c_void {
    let behind = |object: &Object| (object.position == Position::BehindOurs).then(|| object.function(name))?;
    elf::next_function(name)
        .or_else(|| elf::find(behind))
        .or_else(|| elf::find(|object| (!object.is_ours()).then(|| object.function(name))?))
        .unwrap_or(ptr::null_mut())
}

pub fn next_dlsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    once(&FOUND, || first_behind_us(c"dlsym"))
}

pub fn next_dlvsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    once(&FOUND, || first_behind_us(c"dlvsym"))
}

/// The C library's own `dlsym`, behind every layer (in `libdl.so.2` before glibc 2.34).
fn c_library_dlsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    once(&FOUND, || {
        elf::c_library_function(c"dlsym")
            .or_else(|| elf::find(|object| object.is_called(b"libdl.so").then(|| object.function(c"dlsym"))?))
            .unwrap_or_else(next_dlsym)
    })
}

/// The answer of the `dlsym` at `function` to a call from our own object.
///
/// # Safety
/// `function` is null or a `dlsym`, and `handle` one that it takes.
unsafe fn ask(function: *mut c_void, handle: *mut c_void, name: &CStr) -> *mut c_void {
    if function.is_null() {
        return function;
    }
    // SAFETY: by contract the function is a `dlsym` and takes this handle.
    let answer = unsafe { mem::transmute::<*mut c_void, Dlsym>(function)(handle, name.as_ptr()) };
    // This keeps the call from becoming a tail jump, which would make our caller look like the one that asks.
    black_box(answer)
}

/// The answer of the next `dlsym`.
///
/// # Safety
/// `handle` comes from `dlopen`.
pub unsafe fn symbol_in(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the same contract.
    unsafe { ask(next_dlsym(), handle, name) }
}

/// The answer of the next `dlvsym`.
///
/// # Safety
/// `handle` comes from `dlopen`; `version` is what `dlvsym` takes.
pub unsafe fn versioned_symbol_in(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    let function = next_dlvsym();
    if function.is_null() {
        return function;
    }
    // SAFETY: by contract, and the function was found under this name, so it has this signature.
    black_box(unsafe { mem::transmute::<*mut c_void, Dlvsym>(function)(handle, name.as_ptr(), version) })
}

/// The function that the global scope holds behind ours. If there is none, `dlerror` has the usual text.
pub fn behind_us(name: &CStr) -> *mut c_void {
    // SAFETY: the C library's `dlsym` takes RTLD_NEXT from any loaded object.
    unless_ours(unsafe { ask(c_library_dlsym(), RTLD_NEXT, name) })
}

/// A driver library, opened once.
struct Library {
    name: &'static CStr,
    handle: AtomicPtr<c_void>,
    /// The address of a function that an application found through a handle of its own.
    seen: AtomicPtr<c_void>,
}

static DRIVER: Library = Library::new(c"libcuda.so.1");
static NVML: Library = Library::new(c"libnvidia-ml.so.1");

impl Library {
    const fn new(name: &'static CStr) -> Self {
        Library {
            name,
            handle: AtomicPtr::new(ptr::null_mut()),
            seen: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The handle is never closed, because the functions that were found through it must stay loaded.
    fn handle(&self) -> *mut c_void {
        once(&self.handle, || {
            let loaded = open(self.name, RTLD_NOLOAD);
            if !loaded.is_null() {
                return loaded;
            }
            let seen = open_again(self.seen.load(Ordering::Acquire));
            if !seen.is_null() {
                seen
            } else {
                open(self.name, RTLD_LOCAL)
            }
        })
    }

    fn function(&self, name: &CStr) -> *mut c_void {
        let (of_layer, next) = (next_dlsym(), behind_us(name));
        let object = |address: *mut c_void| elf::object_of(address.cast_const());
        // What an object exports that is neither the driver nor that layer is of a layer of its own.
        let is_of_another = |object: Object| {
            !(object.holds(of_layer as usize)
                || object.is_called(b"libcuda.so")
                || object.is_called(b"libnvidia-ml.so"))
        };
        let is_of_another = !next.is_null() && object(next).is_some_and(is_of_another);
        // The `dlsym` of some layers asks RTLD_DEFAULT whatever the handle, and so finds our function. The search goes on.
        if of_layer != c_library_dlsym() && !is_of_another {
            let handed_out = self.in_library(of_layer, name);
            if !handed_out.is_null() {
                return handed_out;
            }
        }
        if !next.is_null() {
            keep_loaded(next);
            return next;
        }
        self.in_library(c_library_dlsym(), name)
    }

    /// The answer of the `dlsym` at `function`; null if it is in our own object.
    fn in_library(&self, function: *mut c_void, name: &CStr) -> *mut c_void {
        let handle = self.handle();
        if handle.is_null() {
            return handle;
        }
        // SAFETY: the handle comes from `dlopen`, and is never closed.
        unless_ours(unsafe { ask(function, handle, name) })
    }
}

pub(super) fn open(name: &CStr, flags: c_int) -> *mut c_void {
    // SAFETY: the name is a C string.
    unsafe { libc::dlopen(name.as_ptr(), RTLD_NOW | flags) }
}

/// A symbol of a library, or of a library that it needs, if the library is loaded already.
pub fn in_loaded_library(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    let handle = open(library, RTLD_NOLOAD);
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle comes from `dlopen`. It is not closed, so the symbol stays valid.
    let found = unsafe { symbol_in(handle, name) };
    (!found.is_null()).then_some(found)
}

/// A handle of the object that holds `address`, if that is still loaded. This takes no lock of the loader's list.
fn open_again(address: *mut c_void) -> *mut c_void {
    match elf::object_of(address) {
        Some(object) if !object.is_ours() && !object.path().is_empty() => open(object.path(), RTLD_NOLOAD),
        _ => ptr::null_mut(),
    }
}

/// Keeps the object that holds `address` loaded from now on, as `Library::handle` does for what it opens: the job may have
/// loaded the object with `RTLD_GLOBAL`, and may close its handle.
fn keep_loaded(address: *mut c_void) {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    let Some(object) = elf::object_of(address) else { return };
    let start = object.span().0;
    if KEPT.load(Ordering::Acquire) != start {
        // The handle is never closed.
        open_again(address);
        KEPT.store(start, Ordering::Release);
    }
}

/// The next layer's function of the driver or of NVML; null if it has none.
pub fn function(name: &CStr) -> *mut c_void {
    let library = if name.to_bytes().starts_with(b"nvml") {
        &NVML
    } else {
        &DRIVER
    };
    library.function(name)
}

/// Notes that an application found the function `name` at `address`, through a handle of its own. The application may
/// have opened the driver by path, under another name. If no library of the usual name is loaded when the driver is
/// needed, the driver is the object that holds this address.
pub fn note_driver_function(name: &CStr, address: *mut c_void) {
    let bytes = name.to_bytes();
    if bytes.starts_with(b"cu") && !bytes.starts_with(b"cuda") {
        DRIVER.seen.store(address, Ordering::Release);
    }
}
