//! Starts what records PyTorch's tensors (`src/python`) in a job that was not started by `vramshim run`.
//!
//! A CUDA runtime begins by a look-up of `cuInit` (12 and 13 do). The thread is deep in the job's code then, and under its
//! locks, so it runs nothing of Python. It gives the interpreter a function, which the main thread calls between two
//! instructions, with the interpreter's lock. In the main thread that is before PyTorch makes its first tensor. If the main
//! thread waits in C code for another thread, the function is called after that. A process that has not imported PyTorch by
//! then imports nothing.
//!
//! Handlers of signals run in the main thread, and what they raise is for the job. So the work is done in a thread of its
//! own, for which the main thread waits.
//!
//! Source: "Python/C API Reference Manual" of 3.9 to 3.14, `Py_AddPendingCall`, which needs neither a thread state nor the
//! lock. Until 3.11 a sub-interpreter may call the function, which does nothing there.

use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::python::{Object, Python, python};
use crate::next::elf;
use config::table;

/// `Py_file_input`: code is a sequence of statements.
const FILE_INPUT: c_int = 257;

/// Whether the main thread looks for PyTorch soon, or has found it.
static LOOKS: AtomicBool = AtomicBool::new(false);

/// A CUDA runtime begins in this process.
pub fn record_tensors() {
    let is_off = || std::env::var_os(table::TORCH.name).is_some_and(|mode| mode == "off");
    let Ok(python) = python() else { return };
    // SAFETY: the functions need no lock, and the second one an interpreter that is initialised. What it is given stays
    // loaded, because a preloaded library is never unloaded.
    unsafe {
        if (python.functions.is_initialized)() != 0 && !is_off() && !LOOKS.swap(true, Relaxed) {
            let refused = (python.functions.call_later)(look, ptr::null_mut()) != 0;
            LOOKS.store(!refused, Relaxed);
        }
    }
}

/// The code that starts the recorder, without its first line, which names the folder. An import that the main thread is in
/// ends the wait.
const START: &str = "
import os, sys, threading
def start():
    try:
        sys.path.insert(0, os.fsdecode(folder))
        try:
            from vramshim import startup
        finally:
            sys.path.remove(os.fsdecode(folder))
        startup.cuda_begins()
    except BaseException:
        pass
thread = threading.Thread(target=start, daemon=True)
thread.start()
thread.join(1)
";

/// What the interpreter calls. An error is the job's if -1 is returned.
extern "C" fn look(_: *mut c_void) -> c_int {
    match python() {
        Ok(python) if python.thread().is_ok() && python.has_torch() => python.start(),
        _ => {
            LOOKS.store(false, Relaxed);
            0
        }
    }
}

/// `None` if the folder is not there.
fn code() -> Option<CString> {
    let library = elf::object_of((&raw const LOOKS).cast())?;
    let folder = config::python_folder(Path::new(std::ffi::OsStr::from_bytes(library.path().to_bytes())))?;
    let bytes = folder.as_os_str().as_bytes().iter();
    let folder: String = bytes.map(|byte| format!("\\x{byte:02x}")).collect();
    CString::new(format!("folder = b'{folder}'{START}")).ok()
}

impl Python {
    /// The thread holds the lock.
    fn has_torch(&self) -> bool {
        let api = &self.functions;
        // SAFETY: the thread holds the lock, and both answers are borrowed.
        unsafe { !(api.item)((api.modules)(), c"torch".as_ptr()).is_null() }
    }

    /// The thread holds the lock, and no error is set.
    fn start(&self) -> c_int {
        let (api, none): (_, Object) = (&self.functions, ptr::null_mut());
        let Some(code) = code() else { return 0 };
        // SAFETY: the thread holds the lock. The dictionary and what the code returns are ours, and are dropped; the class is
        // borrowed from the interpreter, which keeps it.
        unsafe {
            let own = (api.item)((api.builtins)(), c"RuntimeError".as_ptr());
            let names = (api.new_dictionary)();
            if !own.is_null() && !names.is_null() {
                let done = (api.run)(code.as_ptr(), FILE_INPUT, names, names);
                (api.drop)(names);
                if !done.is_null() {
                    (api.drop)(done);
                    return 0;
                }
                // No thread can be started, or the stack is too deep. Else a handler of a signal has raised it.
                if (api.matches)(own) == 0 {
                    return -1;
                }
            }
            (api.set_error)(none, none, none);
        }
        0
    }
}
