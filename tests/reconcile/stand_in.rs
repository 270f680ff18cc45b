//! Processes that keep a journal as the library does, with measurements at moments of our choosing, beside memory of the
//! simulated GPU that really is taken: what a context is known from, and what is said where it is not.

use std::ffi::{CString, c_int, c_void};
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base::api::{Api, Class};
use journal::writer::Journal;
use serde_json::Value;

use crate::gone::{direct, measurement, options};
use crate::holder::{Holder, differences, holder, host, look};
use support::{Job, MIB, client, simulated};

/// The process itself. Commands on stdin, a line each, sizes in MiB:
///
///   measure NVML   writes a measurement; NVML's figure is this one, 0 for none
///   alloc SIZE     memory that the ledger knows
///   hide SIZE      memory that it does not know
///   claim SIZE     memory that is in the ledger alone
///   load FILE      a library
#[test]
#[ignore = "a process that other tests start"]
fn stand_in() {
    let journal = Journal::create(&options(Path::new("journals"))).unwrap();
    let driver = Driver::start();
    let uuid = std::array::from_fn(|place| 0x51 + 7 * place as u8);
    journal.device(0, 4096 * MIB, uuid, "Simulated GPU", None);
    let mut reserved = 0;
    println!("done");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (command, argument) = line.split_once(' ').unwrap();
        let size = argument.parse::<u64>().unwrap_or(0) * MIB;
        if matches!(command, "alloc" | "hide") {
            driver.allocate(size);
        }
        match command {
            "alloc" | "claim" => {
                let event = direct(Class::Linear, (1 << 40) + reserved, size);
                journal.write(event.encode(Api::cuMemAlloc, 0));
                reserved += size;
            }
            "measure" => {
                let (total, free) = driver.memory();
                journal.write(measurement(total, free, size, reserved).encode(Api::Policy, 0));
            }
            "load" => {
                load(Path::new(argument));
            }
            "hide" => {}
            other => panic!("{other} is no command"),
        }
        println!("done");
    }
}

fn load(path: &Path) -> *mut c_void {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a NUL-terminated path of a library of ours.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    library
}

/// The simulated driver with device 0's primary context.
struct Driver(*mut c_void);

impl Driver {
    fn start() -> Driver {
        let driver = Driver(load(&simulated("libcuda.so.1")));
        let mut context: *mut c_void = std::ptr::null_mut();
        // SAFETY: each function has the driver's own signature, and pointers to this frame's values.
        unsafe {
            let init: extern "C" fn(u32) -> c_int = driver.function(c"cuInit");
            let retain: extern "C" fn(*mut *mut c_void, c_int) -> c_int = driver.function(c"cuDevicePrimaryCtxRetain");
            let set: extern "C" fn(*mut c_void) -> c_int = driver.function(c"cuCtxSetCurrent");
            assert_eq!((init(0), retain(&mut context, 0), set(context)), (0, 0, 0));
        }
        driver
    }

    /// # Safety
    /// `F` is the function's own type.
    unsafe fn function<F>(&self, name: &std::ffi::CStr) -> F {
        // SAFETY: the library stays loaded, and the name is NUL-terminated.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null());
        // SAFETY: a function pointer, as the caller says.
        unsafe { std::mem::transmute_copy(&found) }
    }

    fn allocate(&self, size: u64) {
        let mut address = 0u64;
        // SAFETY: the driver's own signature; the address is this frame's.
        let result = unsafe {
            let allocate: extern "C" fn(*mut u64, usize) -> c_int = self.function(c"cuMemAlloc_v2");
            allocate(&mut address, size as usize)
        };
        assert_eq!(result, 0);
    }

    /// Total and free.
    fn memory(&self) -> (u64, u64) {
        let (mut total, mut free) = (0usize, 0usize);
        // SAFETY: the driver's own signature; the numbers are this frame's.
        let result = unsafe {
            let ask: extern "C" fn(*mut usize, *mut usize) -> c_int = self.function(c"cuMemGetInfo_v2");
            ask(&mut free, &mut total)
        };
        assert_eq!(result, 0);
        (total as u64, free as u64)
    }
}

/// Contexts take 300 MiB.
fn start(state: &Path) -> Holder {
    let own = std::env::current_exe().unwrap();
    let job = Job::new(own)
        .alone()
        .args(["--exact", "stand_in::stand_in", "--ignored", "--nocapture"])
        .env("SIMGPU_STATE", state)
        .env("SIMGPU_CONTEXT_BYTES", "300MiB");
    let mut stand_in = Holder::start(job);
    stand_in.wait();
    stand_in
}

fn foreign(state: &Path) -> Holder {
    let job = holder(state).alone().env("SIMGPU_CONTEXT_BYTES", "300MiB");
    Holder::start(job).with(&["device 0", "alloc 700"])
}

/// The part of one process, and the exit code.
fn part(holder: &Holder) -> (Value, i32) {
    let (page, code) = look(&[&holder.pid()]);
    let processes = page["devices"][0]["processes"].as_array().unwrap();
    let own = processes.iter().find(|process| process["pid"] == holder.child.id());
    (own.unwrap_or_else(|| panic!("{page:#}")).clone(), code)
}

#[test]
fn a_context_is_what_nvml_said_at_first() {
    let (_folder, state) = host();
    let _foreign = foreign(&state);
    let mut job = start(&state).with(&["measure 300", "alloc 64"]);
    let (process, code) = part(&job);
    assert_eq!((code, &process["context_basis"]), (0, &"nvml".into()));
    assert_eq!(differences(&process), [300, 0, 0, 0, 0]);
    job.tell("hide 10");
    job.tell("measure 374");
    assert_eq!(differences(&part(&job).0), [300, 0, 0, 0, 10]);
    assert_eq!(part(&job).0["driver"]["free"], (4096 - 1000 - 374) * MIB);
    // Less than was measured: the ledger has what nobody else has.
    job.tell("claim 100");
    let (process, code) = part(&job);
    assert_eq!((differences(&process), code), ([300, 0, 0, 0, -90], 1));
}

#[test]
fn growth_is_module_code_as_far_as_there_is_any() {
    let (_folder, state) = host();
    let job = start(&state).with(&["measure 300", "alloc 64", "hide 10"]);
    assert_eq!(differences(&part(&job).0), [300, 0, 0, 0, 10]);
    let code = client("device_code.c", "device_code.so", &["-shared", "-fPIC"]);
    let job = job.with(&[&format!("load {}", code.display())]);
    assert_eq!(differences(&part(&job).0), [300, 0, 8, 0, 2]);
}

#[test]
fn a_process_that_was_alone_had_the_rest_of_the_device() {
    let (_folder, state) = host();
    let job = start(&state).with(&["measure 0", "alloc 64", "hide 10"]);
    // Who came later changes nothing.
    let _foreign = foreign(&state);
    let job = job.with(&["measure 0"]);
    let (process, code) = part(&job);
    assert_eq!((code, &process["context_basis"]), (0, &"device".into()));
    assert_eq!(differences(&process), [300, 0, 0, 0, 10]);
}

#[test]
fn a_process_that_was_not_alone_has_a_context_like_others() {
    let (_folder, state) = host();
    let _foreign = foreign(&state);
    let job = start(&state).with(&["measure 0", "alloc 64"]);
    let (process, code) = part(&job);
    assert_eq!((code, &process["context_basis"]), (1, &Value::Null));
    assert_eq!(differences(&process), [0, 0, 0, 0, 300]);
    let _told = start(&state).with(&["measure 300", "alloc 1"]);
    let job = job.with(&["hide 5"]);
    let (process, code) = part(&job);
    assert_eq!((code, &process["context_basis"]), (0, &"alike".into()));
    assert_eq!(differences(&process), [300, 0, 0, 0, 5]);
}

#[test]
fn two_that_begin_at_once_have_a_context_each() {
    let (_folder, state) = host();
    let (one, other) = (start(&state), start(&state));
    let (one, other) = (
        one.with(&["measure 0", "alloc 8"]),
        other.with(&["measure 0", "alloc 8"]),
    );
    for job in [&one, &other] {
        let (process, code) = part(job);
        assert_eq!((differences(&process), code), ([300, 0, 0, 0, 0], 0));
    }
}
