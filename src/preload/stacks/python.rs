//! The Python frames of the calling thread, for CPython 3.9 to 3.14, by the interpreter's C API.
//!
//! Nothing here takes the interpreter's lock: a thread that waits for it inside an allocation can wait for ever. If the
//! thread does not hold the lock, there is no stack (`NoStack::NoLock`).
//!
//! A code object carries a number of ours in its extra data (PEP 523), which dies with it. So a number never stands for
//! two code objects, although their addresses are reused. The text of a frame is asked for only if its code object and
//! place are new; everything else is five calls a frame, none of which runs Python code or touches the error that is
//! set. CPython 3.11 makes frame objects in these calls, and a collection of garbage could begin; it is put off
//! meanwhile. Later versions collect only between instructions.
//!
//! Left out, with a reason: builds without the lock ("free-threading"), interpreters besides the main one (extra data
//! belongs to one interpreter), and other versions.
//!
//! Source: "Python/C API Reference Manual" of 3.9 to 3.14, PEP 523. Up to 3.12 the manual calls
//! `PyThreadState_GetUnchecked` by its older name `_PyThreadState_UncheckedGet`; up to 3.11 the names for extra data
//! begin with an underscore.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering::Relaxed};

use once_cell::race::OnceBox;

use super::intern::Interned;
use crate::next::elf;
use crate::next::symbols;
use journal::format::NoStack;
use journal::writer::Line;

pub(super) type Object = *mut c_void;

/// Declares the functions of the interpreter, and finds them in the object that has them.
macro_rules! functions {
    ($($name:ident: [$($symbol:literal),+] fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        pub(super) struct Functions { $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+ }

        impl Functions {
            fn in_object(object: &elf::Object) -> Option<Functions> {
                $(
                    let found = [$($symbol),+].into_iter().find_map(|name| object.function(name))?;
                    // SAFETY: the interpreter's function of this name has this signature in all versions that have it.
                    let $name = unsafe {
                        transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found)
                    };
                )+
                Some(Functions { $($name,)+ })
            }
        }
    };
}

functions! {
    version: [c"Py_GetVersion"] fn() -> *const c_char;
    is_initialized: [c"Py_IsInitialized"] fn() -> c_int;
    at_exit: [c"Py_AtExit"] fn(extern "C" fn()) -> c_int;
    attached: [c"PyThreadState_GetUnchecked", c"_PyThreadState_UncheckedGet"] fn() -> Object;
    of_this_thread: [c"PyGILState_GetThisThreadState"] fn() -> Object;
    interpreter: [c"PyThreadState_GetInterpreter"] fn(Object) -> Object;
    main_interpreter: [c"PyInterpreterState_Main"] fn() -> Object;
    frame: [c"PyThreadState_GetFrame"] fn(Object) -> Object;
    back: [c"PyFrame_GetBack"] fn(Object) -> Object;
    code: [c"PyFrame_GetCode"] fn(Object) -> Object;
    line: [c"PyFrame_GetLineNumber"] fn(Object) -> c_int;
    drop: [c"Py_DecRef"] fn(Object);
    request_extra: [c"PyUnstable_Eval_RequestCodeExtraIndex", c"_PyEval_RequestCodeExtraIndex"]
        fn(*mut c_void) -> isize;
    extra: [c"PyUnstable_Code_GetExtra", c"_PyCode_GetExtra"] fn(Object, isize, *mut *mut c_void) -> c_int;
    set_extra: [c"PyUnstable_Code_SetExtra", c"_PyCode_SetExtra"] fn(Object, isize, *mut c_void) -> c_int;
    attribute: [c"PyObject_GetAttrString"] fn(Object, *const c_char) -> Object;
    encode: [c"PyUnicode_AsEncodedString"] fn(Object, *const c_char, *const c_char) -> Object;
    bytes: [c"PyBytes_AsStringAndSize"] fn(Object, *mut *mut c_char, *mut isize) -> c_int;
    take_error: [c"PyErr_Fetch"] fn(*mut Object, *mut Object, *mut Object);
    set_error: [c"PyErr_Restore"] fn(Object, Object, Object);
    call_later: [c"Py_AddPendingCall"] fn(extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
    modules: [c"PyImport_GetModuleDict"] fn() -> Object;
    item: [c"PyDict_GetItemString"] fn(Object, *const c_char) -> Object;
    builtins: [c"PyEval_GetBuiltins"] fn() -> Object;
    matches: [c"PyErr_ExceptionMatches"] fn(Object) -> c_int;
    new_dictionary: [c"PyDict_New"] fn() -> Object;
    run: [c"PyRun_String"] fn(*const c_char, c_int, Object, Object) -> Object;
}

pub(super) struct Python {
    pub(super) functions: Functions,
    minor: u32,
    /// `PyFrame_GetLasti`, since 3.11: the frame's place in its code.
    place: Option<unsafe extern "C" fn(Object) -> c_int>,
    /// `PyGC_Disable` and `PyGC_Enable`, in 3.11 alone.
    collection: Option<[unsafe extern "C" fn() -> c_int; 2]>,
    /// The addresses of the interpreter's code.
    span: (usize, usize),
}

/// The versions whose frames are read.
const MINORS: std::ops::RangeInclusive<u32> = 9..=14;

/// The interpreter, once it is found.
static FOUND: OnceBox<Python> = OnceBox::new();
/// One more than the generation of the loader's list in which there was no interpreter that can be read.
static MISSING: AtomicU64 = AtomicU64::new(0);
/// Whether an interpreter was there, but of an unsupported kind.
static UNSUPPORTED: AtomicU64 = AtomicU64::new(0);
/// The index of our extra data, or one of the two below. The lock of the main interpreter guards it.
static INDEX: AtomicIsize = AtomicIsize::new(UNKNOWN);
/// The interpreter has given no index so far.
const UNKNOWN: isize = -2;
/// The interpreter gives none.
const REFUSED: isize = -1;
/// The number for the next code object. A forked child goes on counting, so no number is given twice.
static NEXT_CODE: AtomicU64 = AtomicU64::new(1);

/// The interpreter ends. If another one begins, our index may belong to somebody else.
extern "C" fn interpreter_ends() {
    INDEX.store(UNKNOWN, Relaxed);
}

pub(super) fn python() -> Result<&'static Python, NoStack> {
    // An interpreter's library is not unloaded.
    FOUND.get().map_or_else(find, Ok)
}

#[cold]
fn find() -> Result<&'static Python, NoStack> {
    let reason = || match UNSUPPORTED.load(Relaxed) {
        0 => NoStack::NoPython,
        _ => NoStack::Unsupported,
    };
    // In a forked child the lock of the loader's list may be held for ever.
    if symbols::in_forked_child() {
        return Err(reason());
    }
    let now = elf::generation().wrapping_add(1);
    if MISSING.load(Relaxed) == now {
        return Err(reason());
    }
    // The list is locked meanwhile, so the answer is put on the heap afterwards.
    let found = elf::find(|object| {
        object
            .function(c"PyThreadState_GetFrame")
            .or_else(|| object.function(c"Py_GetVersion"))?;
        Some(*object)
    });
    match found.map(|object| Python::in_object(&object)) {
        Some(Some(python)) => Ok(FOUND.get_or_init(|| Box::new(python))),
        other => {
            UNSUPPORTED.store(u64::from(other.is_some()), Relaxed);
            MISSING.store(now, Relaxed);
            Err(reason())
        }
    }
}

/// The minor version of a text such as `3.12.1 (main, ...)`; `None` for a build that is left out.
fn supported(version: &str) -> Option<u32> {
    let rest = version.strip_prefix("3.")?;
    let minor = rest
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?
        .parse()
        .ok()?;
    (MINORS.contains(&minor) && !version.contains("free-threading")).then_some(minor)
}

impl Python {
    fn in_object(object: &elf::Object) -> Option<Python> {
        let functions = Functions::in_object(object)?;
        // SAFETY: the function needs nothing, and its answer is a constant string.
        let version = unsafe { CStr::from_ptr((functions.version)()) }.to_string_lossy();
        let minor = supported(&version)?;
        let place = match minor {
            11.. => Some(object.function(c"PyFrame_GetLasti")?),
            _ => None,
        };
        let collection = match minor {
            11 => Some([object.function(c"PyGC_Disable")?, object.function(c"PyGC_Enable")?]),
            _ => None,
        };
        // SAFETY: the functions of these names have these signatures.
        let (place, collection) = unsafe {
            (
                place.map(|found| transmute::<*mut c_void, unsafe extern "C" fn(Object) -> c_int>(found)),
                collection.map(|found| found.map(|one| transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(one))),
            )
        };
        Some(Python {
            functions,
            minor,
            place,
            collection,
            span: object.span(),
        })
    }

    /// The state of the calling thread, if it holds the lock of the main interpreter.
    pub(super) fn thread(&self) -> Result<Object, NoStack> {
        let api = &self.functions;
        // SAFETY: none of these functions needs the lock, and each accepts any moment of the interpreter's life, except
        // that the thread's state must exist where it is an argument.
        unsafe {
            if (api.is_initialized)() == 0 {
                return Err(NoStack::NoLock);
            }
            let attached = (api.attached)();
            // Since 3.12 the answer is that of this thread. Before, it is that of the thread that holds the lock.
            let holds = !attached.is_null() && (self.minor >= 12 || attached == (api.of_this_thread)());
            if !holds {
                return Err(NoStack::NoLock);
            }
            if (api.interpreter)(attached) != (api.main_interpreter)() {
                return Err(NoStack::Unsupported);
            }
            Ok(attached)
        }
    }

    /// The index of our extra data. The thread holds the lock.
    fn index(&self) -> Result<isize, NoStack> {
        match INDEX.load(Relaxed) {
            UNKNOWN => {}
            REFUSED => return Err(NoStack::Failed),
            known => return Ok(known),
        }
        // SAFETY: the thread holds the lock. The function stays loaded, because a preloaded library is never unloaded. A
        // null function means that nothing is freed with the data.
        let index = unsafe {
            // Without a notice of the interpreter's end, the next one could give our index to somebody else.
            match (self.functions.at_exit)(interpreter_ends) {
                0 => (self.functions.request_extra)(ptr::null_mut()),
                _ => REFUSED,
            }
        };
        INDEX.store(index.max(REFUSED), Relaxed);
        if index >= 0 { Ok(index) } else { Err(NoStack::Failed) }
    }

    /// The number that a code object carries. The thread holds the lock.
    #[inline]
    fn number(&self, code: Object, index: isize) -> Result<u64, NoStack> {
        let mut extra = ptr::null_mut();
        // SAFETY: the code object is referenced by the caller, and `extra` is writable.
        if unsafe { (self.functions.extra)(code, index, &mut extra) } != 0 {
            return Err(NoStack::Failed);
        }
        match extra as u64 {
            0 => self.give_number(code, index),
            number => Ok(number),
        }
    }

    #[cold]
    fn give_number(&self, code: Object, index: isize) -> Result<u64, NoStack> {
        let number = NEXT_CODE.fetch_add(1, Relaxed);
        // SAFETY: as above. The data is a number and not a pointer that anybody follows.
        let set = self.keep_error(|| unsafe { (self.functions.set_extra)(code, index, number as *mut c_void) });
        if set == 0 { Ok(number) } else { Err(NoStack::Failed) }
    }

    /// Does something that may set an error, and leaves the error of the job as it was. The thread holds the lock.
    fn keep_error<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut error = [ptr::null_mut(); 3];
        let [kind, value, traceback] = &mut error;
        // SAFETY: the thread holds the lock, and the pointers are to variables of this frame.
        unsafe { (self.functions.take_error)(kind, value, traceback) };
        let done = work();
        // SAFETY: the three objects, which may be null, are those that were taken. An error that `work` set is dropped.
        unsafe { (self.functions.set_error)(error[0], error[1], error[2]) };
        done
    }

    /// Adds what an attribute of a code object says to a line.
    fn field(&self, line: Line, code: Object, name: &CStr) -> Result<Line, NoStack> {
        let api = &self.functions;
        // SAFETY: the thread holds the lock. Each object that a call returned is referenced until it is dropped, and the
        // bytes are read before.
        unsafe {
            let text = (api.attribute)(code, name.as_ptr());
            if text.is_null() {
                return Err(NoStack::Failed);
            }
            // Names of files that are not UTF-8 have surrogates, which become the bytes that they were.
            let encoded = (api.encode)(text, c"utf-8".as_ptr(), c"surrogateescape".as_ptr());
            (api.drop)(text);
            if encoded.is_null() {
                return Ok(line.field(b"?"));
            }
            let (mut start, mut length) = (ptr::null_mut(), 0);
            let line = match (api.bytes)(encoded, &mut start, &mut length) {
                0 => line.field(std::slice::from_raw_parts(start.cast(), length as usize)),
                _ => line.field(b"?"),
            };
            (api.drop)(encoded);
            Ok(line)
        }
    }

    /// The line of a frame that is seen for the first time: file, line, function.
    #[cold]
    fn describe(&self, line: Line, frame: Object, code: Object) -> Result<Line, NoStack> {
        self.keep_error(|| {
            let line = self.field(line, code, c"co_filename")?;
            // SAFETY: the frame is referenced by the caller.
            let number = unsafe { (self.functions.line)(frame) };
            let line = line.field(number.max(0).to_string().as_bytes());
            let name = if self.minor >= 11 { c"co_qualname" } else { c"co_name" };
            self.field(line, code, name)
        })
    }

    /// The numbers of the frames, innermost first. The thread holds the lock.
    fn walk(&self, thread: Object, interned: &Interned, out: &mut [u32]) -> Result<usize, NoStack> {
        let api = &self.functions;
        let index = self.index()?;
        let mut count = 0;
        // SAFETY: the thread holds the lock. Each frame and code object is referenced until it is dropped; dropping it
        // frees nothing, because the thread is still in the frame.
        unsafe {
            let mut frame = (api.frame)(thread);
            while !frame.is_null() && count < out.len() {
                let code = (api.code)(frame);
                let number = self.number(code, index).and_then(|number| {
                    let place = self.place.map_or_else(|| (api.line)(frame), |place| place(frame));
                    let key = [number | 1 << 63, place as u64];
                    interned.frame(b'P', key, |line| self.describe(line, frame, code))
                });
                (api.drop)(code);
                let back = if number.is_ok() {
                    (api.back)(frame)
                } else {
                    ptr::null_mut()
                };
                (api.drop)(frame);
                out[count] = number?;
                count += 1;
                frame = back;
            }
            if !frame.is_null() {
                (api.drop)(frame);
            }
        }
        match count {
            0 => Err(NoStack::NoFrame),
            count => Ok(count),
        }
    }
}

/// Writes the numbers of the calling thread's frames to `out`, innermost first, and returns how many there are.
pub fn frames(interned: &Interned, out: &mut [u32]) -> Result<usize, NoStack> {
    let python = python()?;
    let thread = python.thread()?;
    let Some([disable, enable]) = python.collection else {
        return python.walk(thread, interned, out);
    };
    // SAFETY: the thread holds the lock.
    let was_enabled = unsafe { disable() } != 0;
    let walked = python.walk(thread, interned, out);
    if was_enabled {
        // SAFETY: as above.
        unsafe { enable() };
    }
    walked
}

/// Whether an address lies in the interpreter, if there is one.
pub fn has(address: usize) -> bool {
    python().is_ok_and(|python| (python.span.0..python.span.1).contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_without_the_lock_and_other_versions_are_left_out() {
        assert_eq!(
            supported("3.9.18 (main, May  9 2026, 07:33:49) \n[GCC 12.2.0]"),
            Some(9)
        );
        assert_eq!(supported("3.14.0rc1 (main)"), Some(14));
        assert_eq!(supported("3.13.0 experimental free-threading build (main)"), None);
        assert_eq!(supported("3.14.0 free-threading build (main)"), None);
        for other in ["3.8.18 (main)", "3.15.0a1 (main)", "2.7.18", ""] {
            assert_eq!(supported(other), None, "{other}");
        }
    }
}
