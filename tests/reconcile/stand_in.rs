//! Stand-ins for jobs: each process writes a journal as the library does, with measurements at chosen moments, and
//! allocates memory of the simulated GPU. The tests check how `reconcile` finds the size of a context, and what it
//! prints if it cannot.

use std::ffi::CString;
use std::io::BufRead;
use std::path::Path;

use base::api::{Api, Class};
use cudarc::driver::{CudaContext, result};
use journal::format::Device;
use journal::writer::{About, Journal};
use serde_json::Value;

use crate::reconcile::gone::measurement;
use crate::reconcile::holder::{differences, holder, host, look};
use support::made::direct;
use support::member::Member;
use support::{Fields, Job, MIB, client};

/// The stand-in process. Reads one command a line from stdin; sizes are in MiB:
///
///   measure NVML   writes a measurement with this figure of NVML, 0 for none
///   alloc SIZE     allocates memory and records it
///   hide SIZE      allocates memory without a record
///   load FILE      loads a library
#[test]
#[ignore = "a process that other tests start"]
fn stand_in() {
    let about = About {
        strategy: "passthrough".into(),
        job: "stand-in".into(),
        ..About::default()
    };
    let journal = Journal::create("journals".as_ref(), 1 << 20, about).unwrap();
    // The context stays current.
    let _context = CudaContext::new(0).unwrap();
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
            // SAFETY: the memory is not used.
            unsafe { result::malloc_sync(size as usize) }.unwrap();
        }
        match command {
            "alloc" => {
                let event = direct(Class::Linear, (1 << 40) + reserved, size);
                journal.write(event.encode(Api::cuMemAlloc, 0));
                reserved += size;
            }
            "measure" => {
                let (free, total) = result::mem_get_info().unwrap();
                journal.write(measurement(total as u64, free as u64, size, reserved).encode(Api::Policy, 0));
            }
            "load" => load(argument),
            "hide" => {}
            other => panic!("{other} is no command"),
        }
        println!("done");
    }
}

fn load(path: &str) {
    let path = CString::new(path).unwrap();
    // SAFETY: the path ends with NUL, and the library was built by this test and has no constructor.
    assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
}

/// Starts a stand-in on a host whose contexts take 300 MiB.
fn start(state: &Path) -> Member {
    let own = std::env::current_exe().unwrap();
    let job = Job::new(own)
        .alone()
        .args(["--exact", "reconcile::stand_in::stand_in", "--ignored", "--nocapture"])
        .env("SIMGPU_STATE", state)
        .env("SIMGPU_CONTEXT_BYTES", "300MiB");
    let mut stand_in = Member::start(job);
    stand_in.wait();
    stand_in
}

fn foreign(state: &Path) -> Member {
    let job = holder(state).alone().env("SIMGPU_CONTEXT_BYTES", "300MiB");
    Member::start(job).with(&["device 0", "alloc 700"])
}

/// The entry of this process in the output of `reconcile`, and the exit code.
fn part(job: &Member) -> (Value, i32) {
    let (page, code) = look(&[&job.pid()]);
    let processes = page["devices"][0]["processes"].list();
    let own = processes.iter().find(|process| process["pid"] == job.child.id());
    (own.unwrap_or_else(|| panic!("{page:#}")).clone(), code)
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
    let both = [(); 2].map(|()| start(&state));
    let both = both.map(|job| job.with(&["measure 0", "alloc 8"]));
    for job in &both {
        let (process, code) = part(job);
        assert_eq!((differences(&process), code), ([300, 0, 0, 0, 0], 0));
    }
}
