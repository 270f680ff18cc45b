//! Runs the command for a limited time under the library, with journals in a temporary folder. Says how it ended, and which
//! of its processes, and which of their memory, the library does not see.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use base::process::job_name_of_process;
use config::table;
use serde_json::{Value, json};

use super::probe::Device;
use super::report::Findings;
use super::{Setup, TIME_OF_A_QUESTION};
use crate::analysis::host::Host;
use crate::analysis::job::Job;
use crate::analysis::names::device_uuid;
use crate::analysis::nvml;
use crate::journals::in_folder;
use crate::launch::environment::Environment;
use crate::launch::processes::{End, Group};
use crate::render::format::{count, duration, printable, size, times};
use crate::render::verdict_lines::verdict;
use crate::say::say;

/// The largest size of a journal in the temporary folder.
const JOURNAL_MAX: &str = "1GiB";
/// The time between two questions to NVML.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// The most processes that get a row of their own. The JSON lists all processes.
const MOST_PROCESSES: usize = 8;
/// Device memory beyond ledger and context that is no sign of a bypass, because code and the driver's buffers take
/// some.
const USUAL_BEYOND_CONTEXT_BYTES: u64 = 256 << 20;
/// Device memory beyond the ledger that is no sign of a bypass, if the size of a context is not known.
const USUAL_BEYOND_LEDGER_BYTES: u64 = 1 << 30;
/// By how much the contexts of two processes on one device may differ.
const CONTEXT_VARIATION_BYTES: u64 = 32 << 20;

/// A process of the command.
#[derive(Default)]
struct Process {
    pid: u32,
    command: String,
    /// It had mapped a driver at some time, and at some time without the library.
    has_driver: bool,
    is_bare: bool,
    /// The most bytes that NVML reported for it, by the device's UUID.
    held: BTreeMap<String, u64>,
    /// Its journal, if it wrote one.
    job: Option<Job>,
}

impl Process {
    /// The text by which a finding names the process.
    fn place(&self) -> String {
        format!("process {}: {}", self.pid, printable(&self.command, 80))
    }

    /// Its requests for memory, and frees, that reached the library; `None` without a journal.
    fn calls(&self) -> Option<u64> {
        let apis = self.job.as_ref()?.ledger.apis.values();
        Some(apis.map(|totals| totals.calls).sum())
    }

    fn as_json(&self) -> Value {
        json!({
            "pid": self.pid, "command": self.command, "journal": self.job.is_some(), "calls": self.calls(),
            "held": self.held,
        })
    }
}

pub fn check(told: &mut Findings, setup: &mut Setup) {
    if setup.command.is_empty() || !setup.is_usable {
        return;
    }
    let moment = duration(setup.moment.as_nanos() as u64);
    if io::stderr().is_terminal() {
        say!("running the command for up to {moment}");
    }
    let folder = tempfile::Builder::new().prefix("vramshim-doctor-").tempdir();
    let (status, mut processes) = match folder.and_then(|folder| run(setup, folder.path())) {
        Ok((End::Interrupted, _)) => return,
        Ok((End::By(status), processes)) => (Some(status), processes),
        Ok((End::TooLong, processes)) => (None, processes),
        Err(why) => {
            told.problem(format!("it cannot be tried: {why}"));
            return;
        }
    };
    // Those with a journal come first, in the order of their starts.
    processes.sort_by_key(|process| process.job.as_ref().map_or(u64::MAX, |job| job.header.wall_start_ns));
    ended(told, status, &moment);
    for process in &processes {
        told.look_at(process.place());
        if let Some(job) = process.job.as_ref().filter(|job| job.finding().fatal)
            && let Some(why) = verdict(job).and_then(|lines| Some(lines.first()?.to_string()))
        {
            told.note(why)
                .advise("vramshim run keeps the journal, and vramshim why then says what to do.");
        }
    }
    told.begin("routes");
    let reached = || processes.iter().filter_map(|process| Some((process, process.calls()?)));
    for (process, calls) in reached().take(MOST_PROCESSES) {
        told.ok(format!("{} calls for memory reached the library", count(calls)))
            .at(process.place());
    }
    let before = told.list.len();
    told.begin("bypass");
    for process in &processes {
        told.look_at(process.place());
        match &process.job {
            Some(job) => beyond_journal(told, job, process, setup.devices()),
            None => without_journal(told, process, setup.devices()),
        }
    }
    told.look_at("");
    let reserves = |job: &Job| job.ledger.devices.values().any(|device| device.all.reserved.peak > 0);
    let mut jobs = processes.iter().filter_map(|process| process.job.as_ref());
    if processes.iter().all(|process| process.held.is_empty()) && jobs.any(reserves) {
        told.note(
            "NVML does not report these processes, so memory that bypassed the library cannot be found by its size",
        )
        .advise(
            "They lived too short for that, or NVML has other numbers for them, as in a container: run the doctor on \
                 the host, or in the host's process namespace (--pid=host).",
        );
    }
    if reached().next().is_none() && told.list.len() == before {
        told.note(if processes.iter().any(|process| process.has_driver) {
            "the command loaded the driver, but asked for no memory in this time"
        } else {
            "the command did not load the driver in this time"
        })
        .advise("Its calls cannot be judged: let it run longer (--for 60s), or give a command that uses CUDA.")
        .of("routes");
    }
    setup.trial = json!({
        "exit_status": status.and_then(|status| status.code()),
        "signal": status.and_then(|status| status.signal()),
        "processes": processes.iter().map(Process::as_json).collect::<Vec<Value>>(),
    });
}

/// Runs the command with its journals in `folder`. Its messages go to standard error, its output nowhere.
fn run(setup: &Setup, folder: &Path) -> io::Result<(End, Vec<Process>)> {
    let environment = setup.environment;
    let mut start = Command::new(&setup.command[0]);
    start.args(&setup.command[1..]);
    environment.apply(&mut start, &environment.preloads());
    start
        .env(table::DIRECTORY.name, folder)
        .env(table::JOURNAL_MAX.name, JOURNAL_MAX)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut group = Group::start(&mut start)?;
    let mut seen: BTreeMap<u32, Process> = BTreeMap::new();
    let (leader, is_over) = (group.child().id(), AtomicBool::new(false));
    let uuids: Vec<String> = setup.devices().iter().filter_map(|device| device.uuid.clone()).collect();
    let (end, held) = thread::scope(|scope| {
        let held = scope.spawn(|| watch_memory(leader, &uuids, &is_over));
        let end = group.wait(setup.moment, |group| {
            for (process, _) in group.family() {
                look_at(process, environment, seen.entry(process).or_default());
            }
        });
        is_over.store(true, Relaxed);
        (end, held.join().unwrap_or_default())
    });
    let end = end?;
    group.end();
    for path in in_folder(folder)? {
        match Job::load(&path, |_, _| {}) {
            Ok(job) => {
                let process = seen.entry(job.header.pid).or_default();
                (process.command, process.job) = (job.header.command_line.join(" "), Some(job));
            }
            // The process was ended before it had written the header.
            Err(error) if error.is_too_early() => {}
            Err(error) => return Err(io::Error::other(error.to_string())),
        }
    }
    for ((process, uuid), bytes) in held {
        if let Some(process) = seen.get_mut(&process) {
            process.held.insert(uuid, bytes);
        }
    }
    let processes = seen.into_iter().map(|(pid, process)| Process { pid, ..process });
    Ok((end, processes.collect()))
}

/// Notes whether the process has mapped a driver and the library now, and its name.
fn look_at(process: u32, environment: &Environment, seen: &mut Process) {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let paths = || maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let has_driver = paths().any(|path| path.contains("/libcuda.so"));
    let has_library = paths().any(|path| environment.library.as_deref() == Some(Path::new(path)));
    seen.has_driver |= has_driver;
    seen.is_bare |= has_driver && !has_library;
    if let Some(name) = job_name_of_process(process) {
        seen.command = name;
    }
}

/// Asks NVML until the trial is over. Returns the most bytes of each process on each device. `leader` is a process of the
/// command, which has the variables of a simulated GPU.
fn watch_memory(leader: u32, uuids: &[String], is_over: &AtomicBool) -> BTreeMap<(u32, String), u64> {
    let mut most: BTreeMap<(u32, String), u64> = BTreeMap::new();
    while !is_over.load(Relaxed) {
        let all = nvml::ask(&Host::of(leader), uuids, TIME_OF_A_QUESTION).unwrap_or_default();
        for device in all {
            let processes = device.reading.and_then(|reading| reading.processes);
            for (process, bytes) in processes.iter().flatten().filter_map(|one| Some((one.pid, one.used?))) {
                let held = most.entry((process, device.uuid.clone())).or_default();
                *held = bytes.max(*held);
            }
        }
        thread::sleep(ASK_EVERY);
    }
    most
}

/// How the command ended; `None` if its time was over.
fn ended(told: &mut Findings, status: Option<ExitStatus>, moment: &str) {
    match status.map(|status| (status, status.code(), status.signal())) {
        None => told.ok(format!("ran for {moment} and was ended")),
        Some((_, Some(0), _)) => told.ok("ran to its end (exit 0)"),
        Some((_, Some(code), _)) => told
            .warning(format!("it failed (exit {code})"))
            .advise("Its messages are on standard error. Run it by itself to see its output."),
        Some((_, None, Some(signal))) => told
            .problem(format!("it died of signal {signal}"))
            .advise("Run it without the library; if it works then, report a bug of vramshim."),
        Some((status, None, None)) => told.warning(format!("it failed ({status})")),
    };
}

/// Checks a process that wrote no journal: did it load the driver?
fn without_journal(told: &mut Findings, process: &Process, devices: &[Device]) {
    let held: u64 = process.held.values().sum();
    if process.is_bare {
        let holds = match held {
            0 => String::new(),
            held => format!(" and holds {} of device memory", size(held)),
        };
        told.warning(format!("loaded the driver{holds}, and the library is not in it"))
            .advise(
                "Its LD_PRELOAD was cleared on the way (env -i, sudo, a launcher or container of its own), or the program \
                 is static or setuid: pass LD_PRELOAD on, or start it with vramshim run itself.",
            );
    } else if held > 0 {
        let contexts = process.held.keys().filter_map(|uuid| context_bytes(devices, uuid));
        if held > contexts.sum::<u64>() + CONTEXT_VARIATION_BYTES {
            let held = size(held);
            told.warning(format!(
                "holds {held} of device memory and never asked the library for any"
            ))
            .advise(
                "It found the driver's functions by a way of its own (ELF tables, a second copy), or its code is \
                     large: nothing of it is in a journal.",
            );
        } else {
            told.note("has a context but did not ask for memory");
        }
    }
}

/// The size of a context on the device according to NVML, measured on the context of the probe.
fn context_bytes(devices: &[Device], uuid: &str) -> Option<u64> {
    let device = devices.iter().find(|device| device.uuid.as_deref() == Some(uuid));
    device?.context_bytes
}

/// Checks for memory that bypassed the library: frees of memory that was not allocated through it, and memory that NVML
/// charges to a process and that neither its ledger nor a context explains.
fn beyond_journal(told: &mut Findings, job: &Job, process: &Process, devices: &[Device]) {
    if job.header.unknown_frees > 0 {
        let times = times(job.header.unknown_frees);
        told.warning(format!("memory that was not allocated through the library was freed through it, {times}"))
            .advise(
                "Something allocates past the library: a library with a copy of the driver's addresses from before, or one \
                 that reads ELF tables. That memory is not counted. Memory of a CUDA graph may be freed like this.",
            );
    }
    for (uuid, &held) in &process.held {
        let context = context_bytes(devices, uuid);
        let ledgers = job.devices().into_iter().filter_map(|(_, entry, ledger)| {
            let same = device_uuid(&entry?.uuid).as_ref() == Some(uuid);
            ledger.filter(|_| same).map(|ledger| ledger.all.reserved.peak)
        });
        let reserved: u64 = ledgers.sum();
        let beyond = held.saturating_sub(reserved).saturating_sub(context.unwrap_or(0));
        let usual = match context {
            Some(_) => USUAL_BEYOND_CONTEXT_BYTES,
            None => USUAL_BEYOND_LEDGER_BYTES,
        };
        if beyond > usual {
            let context = context.map_or_else(|| "an unknown amount".into(), size);
            let [held, reserved, beyond] = [held, reserved, beyond].map(size);
            told.warning(format!(
                "NVML says that it holds {held} of {uuid}, the library knows of {reserved} and a context takes \
                 {context}: {beyond} came past the library"
            ))
            .advise(
                "The code of large libraries is part of it. The rest was allocated by calls that the library does not \
                 see.",
            );
        }
    }
}
