//! Finds the next layer: what an application would have reached, had we not been there.
//!
//! | asked for | found |
//! |---|---|
//! | `dlsym`, `dlvsym` | first exported behind us in load order: a layer's own, else the C library's |
//! | a driver function | what the global scope holds behind us (a preloaded layer, a driver linked directly); else in the driver library, loaded already or loaded now, through the next `dlsym`, so that a layer which only hooks `dlsym` is heard too |
//! | a runtime function | a layer behind us; else the calling object's own runtime |
//!
//! "What the global scope holds behind us" is `RTLD_NEXT`, asked from our own code of the C library's `dlsym`: load order
//! alone would not do, since a library loaded `RTLD_LOCAL` is in the loader's list but in nobody else's scope. It is the
//! C library's and not the next one because a layer's `dlsym` that forwards by a call would make `RTLD_NEXT` start at
//! that layer, and because some refuse a second `RTLD_NEXT` for the same name. An address in our own object is never an
//! answer.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::{mem, ptr};

use libc::{RTLD_LOCAL, RTLD_NEXT, RTLD_NOLOAD, RTLD_NOW};

use super::elf::{self, Object, Place};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The value of `cell`, found at first use. No lock: threads that come at once find the same.
fn once(cell: &AtomicPtr<c_void>, find: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let mut value = cell.load(Ordering::Acquire);
    if value.is_null() {
        value = find();
        cell.store(value, Ordering::Release);
    }
    value
}

/// Whether `address` lies in our own object.
pub fn is_ours(address: *const c_void) -> bool {
    static LOW: AtomicUsize = AtomicUsize::new(0);
    static HIGH: AtomicUsize = AtomicUsize::new(0);
    if HIGH.load(Ordering::Acquire) == 0 {
        let (low, high) = elf::find(|object| object.is_ours().then(|| object.span())).unwrap_or((0, 1));
        LOW.store(low, Ordering::Release);
        HIGH.store(high, Ordering::Release);
    }
    (LOW.load(Ordering::Acquire)..HIGH.load(Ordering::Acquire)).contains(&(address as usize))
}

/// Whether this process was forked from the one that first asked this: then a thread that exists no more may hold the lock
/// of the loader's list, and who waits for it waits for ever.
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

/// First behind us in load order. Where we were not preloaded the C library may come before us: then the first at all.
fn first_behind_us(name: &CStr) -> *mut c_void {
    elf::find(|object| {
        if object.place() == Place::BehindOurs {
            object.function(name)
        } else {
            None
        }
    })
    .or_else(|| elf::find(|object| if object.is_ours() { None } else { object.function(name) }))
    .unwrap_or(ptr::null_mut())
}

/// The `dlsym` behind ours.
pub fn next_dlsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    once(&FOUND, || first_behind_us(c"dlsym"))
}

/// The `dlvsym` behind ours.
pub fn next_dlvsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    once(&FOUND, || first_behind_us(c"dlvsym"))
}

/// The C library's own `dlsym`, behind every layer (in `libdl.so.2` before glibc 2.34).
fn c_library_dlsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    once(&FOUND, || {
        let of_c_library = |object: &Object| object.is_called(b"libc.so") || object.is_called(b"libdl.so");
        elf::find(|object| {
            if of_c_library(object) {
                object.function(c"dlsym")
            } else {
                None
            }
        })
        .unwrap_or_else(next_dlsym)
    })
}

/// What the `dlsym` at `function` answers when our own object asks.
///
/// # Safety
/// `function` is null or a `dlsym`, and `handle` one that it takes.
unsafe fn ask(function: *mut c_void, handle: *mut c_void, name: &CStr) -> *mut c_void {
    if function.is_null() {
        return function;
    }
    // SAFETY: by contract.
    let answer = unsafe { mem::transmute::<*mut c_void, Dlsym>(function)(handle, name.as_ptr()) };
    // Something left to do after the call: as a tail jump it would look as if our caller had asked.
    black_box(answer)
}

/// What the next `dlsym` answers.
///
/// # Safety
/// `handle` comes from `dlopen`.
pub unsafe fn symbol_in(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the same contract.
    unsafe { ask(next_dlsym(), handle, name) }
}

/// What the next `dlvsym` answers.
///
/// # Safety
/// `handle` comes from `dlopen`; `version` is what `dlvsym` takes.
pub unsafe fn versioned_symbol_in(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    let function = next_dlvsym();
    if function.is_null() {
        return function;
    }
    // SAFETY: by contract; the function was found under this name.
    black_box(unsafe { mem::transmute::<*mut c_void, Dlvsym>(function)(handle, name.as_ptr(), version) })
}

/// What the global scope holds behind us; where it is null, `dlerror` has the usual words for it.
pub fn behind_us(name: &CStr) -> *mut c_void {
    // SAFETY: a `dlsym` takes RTLD_NEXT from any loaded object.
    unless_ours(unsafe { ask(c_library_dlsym(), RTLD_NEXT, name) })
}

/// A driver library, opened once.
struct Library {
    name: &'static CStr,
    handle: AtomicPtr<c_void>,
    /// A function that an application found through a handle of its own.
    seen: AtomicPtr<c_void>,
}

static DRIVER: Library = Library::new(c"libcuda.so.1");
static MANAGEMENT: Library = Library::new(c"libnvidia-ml.so.1");

impl Library {
    const fn new(name: &'static CStr) -> Self {
        Library {
            name,
            handle: AtomicPtr::new(ptr::null_mut()),
            seen: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The handle is never closed: what was found through it must stay where it is.
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
        let next = behind_us(name);
        if !next.is_null() {
            return next;
        }
        let handle = self.handle();
        if handle.is_null() {
            return handle;
        }
        // SAFETY: just opened, never closed.
        unless_ours(unsafe { symbol_in(handle, name) })
    }
}

fn open(name: &CStr, flags: c_int) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlopen(name.as_ptr(), RTLD_NOW | flags) }
}

/// A handle of the object that `address` lies in, if it is still loaded.
fn open_again(address: *mut c_void) -> *mut c_void {
    let mut path = [0u8; libc::PATH_MAX as usize];
    // Copied, because nothing may be opened while the loader's list is locked.
    let found = elf::find(|object| {
        let bytes = object.path().to_bytes_with_nul();
        let holds = !address.is_null() && !object.is_ours() && object.holds(address as usize);
        (holds && bytes.len() > 1 && bytes.len() <= path.len()).then(|| path[..bytes.len()].copy_from_slice(bytes))
    });
    match (found, CStr::from_bytes_until_nul(&path)) {
        (Some(()), Ok(path)) => open(path, RTLD_NOLOAD),
        _ => ptr::null_mut(),
    }
}

/// The next layer's function of the driver or its management library, or null.
pub fn function(name: &CStr) -> *mut c_void {
    let library = if name.to_bytes().starts_with(b"nvml") {
        &MANAGEMENT
    } else {
        &DRIVER
    };
    library.function(name)
}

/// An application found the function `name` at `address`, through a handle of its own: should no library of the usual
/// name be loaded when we come to look, the driver is what this lies in (one opened by path, under another name).
pub fn saw(name: &CStr, address: *mut c_void) {
    let bytes = name.to_bytes();
    if bytes.starts_with(b"cu") && !bytes.starts_with(b"cuda") {
        DRIVER.seen.store(address, Ordering::Release);
    }
}

fn is_runtime(object: &Object) -> bool {
    !object.is_ours() && object.is_called(b"libcudart.so")
}

/// The function of this name in the first object that is `wanted`.
fn first(name: &CStr, wanted: impl Fn(&Object) -> bool) -> *mut c_void {
    elf::find(|object| if wanted(object) { object.function(name) } else { None }).unwrap_or(ptr::null_mut())
}

/// A runtime function to forward to.
struct Route {
    address: *mut c_void,
    /// Whether every caller would get this one.
    common: bool,
}

/// The runtime function to forward to: a layer's (what the global scope holds behind us, where that is no runtime
/// library), else the only one there is, else the caller's. One in front of us is never an answer: it may be a layer
/// that has us below it.
fn route(name: &CStr) -> Route {
    let next = behind_us(name);
    if !next.is_null() && !elf::object_of(next).is_some_and(|object| is_runtime(&object)) {
        return Route {
            address: next,
            common: true,
        };
    }
    let mut count = 0;
    elf::find(|object| {
        count += usize::from(object.place() == Place::BehindOurs && object.function(name).is_some());
        None::<()>
    });
    match count {
        0 => Route {
            address: first(name, is_runtime),
            common: true,
        },
        1 => Route {
            address: first(name, |object| object.place() == Place::BehindOurs),
            common: true,
        },
        _ => Route {
            address: of_caller(name, next),
            common: false,
        },
    }
}

/// In this order: the caller's own (a static runtime that it exports, or the runtime calling itself); the runtime library
/// that the caller was linked with; what the global scope holds; the first.
fn of_caller(name: &CStr, next: *mut c_void) -> *mut c_void {
    let caller = calling_object();
    if let Some(own) = caller
        .filter(|caller| caller.place() == Place::BehindOurs)
        .and_then(|caller| caller.function(name))
    {
        return own;
    }
    let linked = |object: &Object| {
        caller.is_some_and(|caller| caller.needed().any(|needed| object.answers_to(needed.to_bytes())))
    };
    let candidates = [
        first(name, |object| is_runtime(object) && linked(object)),
        next,
        first(name, is_runtime),
        first(name, |object| object.place() == Place::BehindOurs),
    ];
    candidates
        .into_iter()
        .find(|address| !address.is_null())
        .unwrap_or(ptr::null_mut())
}

/// Set in children of a process that has remembered a runtime function: `in_forked_child`, without the system call.
static FORKED: AtomicBool = AtomicBool::new(false);

fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: a function that stays loaded, as a preloaded library does.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// A runtime function, remembered for as long as no object is loaded or unloaded, and only where the answer is the same
/// for every caller.
pub struct RuntimeFunction {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    /// The loader's generation that `address` belongs to, plus one; 0 while it belongs to none.
    valid: AtomicU64,
    writing: AtomicBool,
}

impl RuntimeFunction {
    pub const fn new(name: &'static CStr) -> Self {
        RuntimeFunction {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
            valid: AtomicU64::new(0),
            writing: AtomicBool::new(false),
        }
    }

    pub fn get(&self) -> *mut c_void {
        // A forked child does not ask whether anything changed; what its parent used is still there.
        if FORKED.load(Ordering::Relaxed) && self.valid.load(Ordering::Acquire) != 0 {
            return self.address.load(Ordering::Acquire);
        }
        let now = elf::generation().wrapping_add(1);
        if self.valid.load(Ordering::Acquire) == now {
            let address = self.address.load(Ordering::Acquire);
            if self.valid.load(Ordering::Acquire) == now {
                return address;
            }
        }
        let Route { address: found, common } = route(self.name);
        if common && !found.is_null() && !self.writing.swap(true, Ordering::AcqRel) {
            watch_forks();
            self.valid.store(0, Ordering::SeqCst);
            self.address.store(found, Ordering::SeqCst);
            self.valid.store(now, Ordering::SeqCst);
            self.writing.store(false, Ordering::Release);
        }
        found
    }
}

/// The object that called into ours: the first on the stack that is not ours.
pub fn calling_object() -> Option<Object> {
    const CONTINUE: c_int = 0;
    const STOP: c_int = 4;
    unsafe extern "C" {
        // libgcc_s (or LLVM's libunwind), which Rust's std links. Both are of the Itanium C++ ABI.
        fn _Unwind_Backtrace(visit: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }
    extern "C" fn visit(context: *mut c_void, found: *mut c_void) -> c_int {
        // SAFETY: the unwinder's own context.
        let address = unsafe { _Unwind_GetIP(context) } as *mut c_void;
        if address.is_null() || is_ours(address) {
            return CONTINUE;
        }
        // SAFETY: the variable below.
        unsafe { *found.cast::<*mut c_void>() = address };
        STOP
    }
    let mut address: *mut c_void = ptr::null_mut();
    // SAFETY: `visit` gets the variable it is to fill, and only during the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut address).cast()) };
    if address.is_null() {
        None
    } else {
        elf::object_of(address)
    }
}
