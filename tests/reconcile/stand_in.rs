//! Stand-ins for jobs: each process writes a journal as the library does, with measurements at chosen moments, and
//! allocates memory of the simulated GPU. The tests check how `reconcile` finds the size of a context, and what it
//! prints if it cannot.

use std::ffi::{CString, c_int, c_void};
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base::api::{Api, Class};
use journal::format::Device;
use journal::writer::Journal;
use serde_json::Value;

use crate::reconcile::gone::{measurement, options};
use crate::reconcile::holder::{Holder, differences, holder, host, look};
use support::made::direct;
use support::{Fields, Job, MIB, client, simulated};

/// The stand-in process. Reads one command a line from stdin; sizes are in MiB:
///
///   measure NVML   writes a measurement with this figure of NVML, 0 for none
///   alloc SIZE     allocates memory and records it
///   hide SIZE      allocates memory without a record
///   claim SIZE     records memory that it does not allocate
///   load FILE      loads a library
#[test]
#[ignore = "a process that other tests start"]
fn stand_in() {
    let journal = Journal::create(&options(Path::new("journals"))).unwrap();
    let driver = Driver::start();
    let uuid = std::array::from_fn(|place| 0x51 + 7 * place as u8);
    journal.device(&Device {
        total_memory: 4096 * MIB,
        uuid,
        name: "Simulated GPU".into(),
        ..Device::default()
    });
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
    // SAFETY: the path ends with NUL, and the library was built by this test and has no constructor.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    library
}

/// The simulated driver, with the primary context of device 0 current.
struct Driver(*mut c_void);

impl Driver {
    fn start() -> Driver {
        let driver = Driver(load(&simulated("libcuda.so.1")));
        let mut context: *mut c_void = std::ptr::null_mut();
        // SAFETY: each type is the function's own signature, and every pointer is to a value of this frame.
        unsafe {
            let init: extern "C" fn(u32) -> c_int = driver.function(c"cuInit");
            let retain: extern "C" fn(*mut *mut c_void, c_int) -> c_int = driver.function(c"cuDevicePrimaryCtxRetain");
            let set: extern "C" fn(*mut c_void) -> c_int = driver.function(c"cuCtxSetCurrent");
            assert_eq!((init(0), retain(&mut context, 0), set(context)), (0, 0, 0));
        }
        driver
    }

    /// # Safety
    /// `F` is the type of the function with this name.
    unsafe fn function<F>(&self, name: &std::ffi::CStr) -> F {
        // SAFETY: the library stays loaded, and the name is NUL-terminated.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null());
        // SAFETY: the caller promises that `F` is a function pointer of this type.
        unsafe { std::mem::transmute_copy(&found) }
    }

    fn allocate(&self, size: u64) {
        let mut address = 0u64;
        // SAFETY: the type is the function's own signature, and the pointer is to a value of this frame.
        let result = unsafe {
            let allocate: extern "C" fn(*mut u64, usize) -> c_int = self.function(c"cuMemAlloc_v2");
            allocate(&mut address, size as usize)
        };
        assert_eq!(result, 0);
    }

    /// The total and the free bytes of the device.
    fn memory(&self) -> (u64, u64) {
        let (mut total, mut free) = (0usize, 0usize);
        // SAFETY: the type is the function's own signature, and both pointers are to values of this frame.
        let result = unsafe {
            let ask: extern "C" fn(*mut usize, *mut usize) -> c_int = self.function(c"cuMemGetInfo_v2");
            ask(&mut free, &mut total)
        };
        assert_eq!(result, 0);
        (total as u64, free as u64)
    }
}

/// Starts a stand-in on a host whose contexts take 300 MiB.
fn start(state: &Path) -> Holder {
    let own = std::env::current_exe().unwrap();
    let job = Job::new(own)
        .alone()
        .args(["--exact", "reconcile::stand_in::stand_in", "--ignored", "--nocapture"])
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

/// The entry of this process in the output of `reconcile`, and the exit code.
fn part(holder: &Holder) -> (Value, i32) {
    let (page, code) = look(&[&holder.pid()]);
    let processes = page["devices"][0]["processes"].list();
    let own = processes.iter().find(|process| process["pid"] == holder.child.id());
    (own.unwrap_or_else(|| panic!("{page:#}")).clone(), code)
}

#[test]
fn a_context_has_the_size_of_nvmls_first_figure() {
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
    // The measured use is smaller than the ledger, because 100 MiB are recorded and not allocated.
    job.tell("claim 100");
    let (process, code) = part(&job);
    assert_eq!((differences(&process), code), ([300, 0, 0, 0, -90], 1));
}

#[test]
fn growth_is_module_code_up_to_the_size_of_the_loaded_code() {
    let (_folder, state) = host();
    let job = start(&state).with(&["measure 300", "alloc 64", "hide 10"]);
    assert_eq!(differences(&part(&job).0), [300, 0, 0, 0, 10]);
    let code = client("reconcile/device_code.c", "device_code.so", &["-shared", "-fPIC"]);
    let job = job.with(&[&format!("load {}", code.display())]);
    assert_eq!(differences(&part(&job).0), [300, 0, 8, 0, 2]);
}

#[test]
fn a_process_that_was_alone_is_charged_the_use_of_the_device() {
    let (_folder, state) = host();
    let job = start(&state).with(&["measure 0", "alloc 64", "hide 10"]);
    // A process that starts later changes nothing.
    let _foreign = foreign(&state);
    let job = job.with(&["measure 0"]);
    let (process, code) = part(&job);
    assert_eq!((code, &process["context_basis"]), (0, &"device".into()));
    assert_eq!(differences(&process), [300, 0, 0, 0, 10]);
}

#[test]
fn a_process_that_was_not_alone_is_charged_a_typical_context() {
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
fn two_processes_that_start_together_are_charged_a_context_each() {
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
