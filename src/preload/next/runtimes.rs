//! Finds the runtime function to forward to: that of a layer behind ours, else that of the calling object's own runtime.
//! Several runtimes may be loaded in one process, as .12 and .13 are if packages for both are installed.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::{mem, ptr};

use libc::RTLD_LOCAL;
use once_cell::race::OnceBox;

use super::elf::{self, Object, Position};
use super::symbols::{behind_us, in_forked_child, is_ours, open, symbol_in};

fn is_runtime(object: &Object) -> bool {
    !object.is_ours() && object.is_called(b"libcudart.so")
}

/// The function of this name in the first object that `wanted` accepts.
fn first(name: &CStr, wanted: impl Fn(&Object) -> bool) -> *mut c_void {
    elf::find(|object| if wanted(object) { object.function(name) } else { None }).unwrap_or(ptr::null_mut())
}

/// Whether `next`, which the global scope holds behind ours, belongs to a layer.
fn is_of_layer(next: *mut c_void) -> bool {
    !next.is_null() && !elf::object_of(next).is_some_and(|object| is_runtime(&object))
}

/// How many objects behind ours have the function of this name.
fn count(name: &CStr) -> usize {
    let mut count = 0;
    elf::find(|object| {
        count += usize::from(object.position == Position::BehindOurs && object.function(name).is_some());
        None::<()>
    });
    count
}

/// The function of this name that every caller gets; `None` if that depends on the caller. A layer's is the answer if there
/// is one, otherwise the only one behind ours. A function in front of ours is never the answer: it may belong to a layer
/// that forwards to us.
fn of_every_caller(name: &CStr, next: *mut c_void) -> Option<*mut c_void> {
    if is_of_layer(next) {
        return Some(next);
    }
    match count(name) {
        0 => Some(first(name, is_runtime)),
        1 => Some(first(name, |object| object.position == Position::BehindOurs)),
        _ => None,
    }
}

/// Whether our function of this name forwards to that of the caller's runtime, because there are several. That need not be
/// the one that a handle names. A forked child cannot ask for the loader's list. If this is not so, `dlerror` stays as it is.
pub fn depends_on_caller(name: &CStr) -> bool {
    name.to_bytes().starts_with(b"cuda") && !in_forked_child() && count(name) > 1 && !is_of_layer(behind_us(name))
}

/// The first of these that exists: the caller's own function (from a static runtime that it exports, or in the runtime
/// itself); that of the runtime library that the caller is linked with; `next`, that of the global scope; that of the
/// first runtime library; that of the first object behind ours.
fn of_caller(name: &CStr, next: *mut c_void) -> *mut c_void {
    let caller = calling_object();
    if let Some(own) = caller
        .filter(|caller| caller.position == Position::BehindOurs)
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
        first(name, |object| object.position == Position::BehindOurs),
    ];
    candidates
        .into_iter()
        .find(|address| !address.is_null())
        .unwrap_or(ptr::null_mut())
}

/// Set in forked children of a process that has remembered a runtime function. It tells the same as `in_forked_child`,
/// without a system call.
static FORKED: AtomicBool = AtomicBool::new(false);

fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function stays loaded, because a preloaded library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// A runtime function. It is remembered until an object is loaded or unloaded, and only if every caller gets the same
/// one.
pub struct RuntimeFunction {
    address: AtomicPtr<c_void>,
    /// One more than the generation of the loader's list that `address` was found in. It is 0 as long as no address was found.
    valid: AtomicU64,
    writing: AtomicBool,
}

impl RuntimeFunction {
    pub const fn new() -> Self {
        RuntimeFunction {
            address: AtomicPtr::new(ptr::null_mut()),
            valid: AtomicU64::new(0),
            writing: AtomicBool::new(false),
        }
    }

    /// The function, which is always asked for by the same name.
    pub fn get(&self, name: &CStr) -> *mut c_void {
        // A forked child must not take the loader's lock to ask for changes. The function that its parent used is still
        // loaded.
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
        let next = behind_us(name);
        let common = of_every_caller(name, next);
        let found = common.unwrap_or_else(|| of_caller(name, next));
        if common.is_some() && !found.is_null() && !self.writing.swap(true, Ordering::AcqRel) {
            watch_forks();
            self.valid.store(0, Ordering::SeqCst);
            self.address.store(found, Ordering::SeqCst);
            self.valid.store(now, Ordering::SeqCst);
            self.writing.store(false, Ordering::Release);
        }
        found
    }
}

/// `_Unwind_Backtrace` and `_Unwind_GetIP` of the Itanium C++ ABI.
type Backtrace = unsafe extern "C" fn(extern "C" fn(*mut c_void, *mut c_void) -> c_int, *mut c_void) -> c_int;
type InstructionPointer = unsafe extern "C" fn(*mut c_void) -> usize;

struct Unwinder {
    backtrace: Backtrace,
    instruction_pointer: InstructionPointer,
}

/// The unwinder of `libgcc_s.so.1`, which every C++ program has loaded. Our own library is not linked with it.
fn unwinder() -> Option<&'static Unwinder> {
    static FOUND: OnceBox<Option<Unwinder>> = OnceBox::new();
    let find = || {
        // It is never closed, because the functions must stay loaded.
        let handle = open(c"libgcc_s.so.1", RTLD_LOCAL);
        if handle.is_null() {
            return None;
        }
        // SAFETY: the handle comes from `dlopen`.
        let found = [c"_Unwind_Backtrace", c"_Unwind_GetIP"].map(|name| unsafe { symbol_in(handle, name) });
        let is_whole = found.iter().all(|function| !function.is_null());
        // SAFETY: the functions of these names have these signatures.
        is_whole.then(|| unsafe {
            Unwinder {
                backtrace: mem::transmute::<*mut c_void, Backtrace>(found[0]),
                instruction_pointer: mem::transmute::<*mut c_void, InstructionPointer>(found[1]),
            }
        })
    };
    FOUND.get_or_init(|| Box::new(find())).as_ref()
}

/// What `visit` fills in.
struct Caller {
    instruction_pointer: InstructionPointer,
    address: *mut c_void,
}

/// The object that called into ours: that of the first frame on the stack that is not in ours.
fn calling_object() -> Option<Object> {
    const CONTINUE: c_int = 0;
    const STOP: c_int = 4;
    extern "C" fn visit(context: *mut c_void, caller: *mut c_void) -> c_int {
        // SAFETY: the pointer is to the variable `caller` below, to which there is no other reference during the call.
        let caller = unsafe { &mut *caller.cast::<Caller>() };
        // SAFETY: the context is the one that the unwinder passed.
        let address = unsafe { (caller.instruction_pointer)(context) } as *mut c_void;
        if address.is_null() || is_ours(address) {
            return CONTINUE;
        }
        caller.address = address;
        STOP
    }
    let unwinder = unwinder()?;
    let mut caller = Caller {
        instruction_pointer: unwinder.instruction_pointer,
        address: ptr::null_mut(),
    };
    // SAFETY: `visit` gets a pointer to the variable that it fills, and only during the call.
    unsafe { (unwinder.backtrace)(visit, (&raw mut caller).cast()) };
    if caller.address.is_null() {
        None
    } else {
        elf::object_of(caller.address)
    }
}
