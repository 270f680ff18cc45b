//! Runs the command for a limited time under the library, with journals in a temporary folder. Says how it ended, and which
//! of its processes the library does not see. What is beyond the ledger of a job is told by `reconcile`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use base::api::Class;
use base::process::job_name_of_process;
use config::table;
use journal::reader::plain::journals_in;
use serde_json::{Value, json};

use super::Setup;
use super::report::{Findings, Severity};
use crate::analysis::job::Job;
use crate::launch::environment::Environment;
use crate::launch::processes::{End, Group};
use crate::render::format::{count, duration, printable, times};
use crate::render::verdict_lines::verdict;
use crate::say::say;

/// The largest size of a journal in the temporary folder.
const JOURNAL_MAX: &str = "1GiB";
/// The most processes that get a row of their own. The JSON lists all processes.
const MOST_PROCESSES: usize = 8;

/// A process of the command.
#[derive(Default)]
struct Process {
    pid: u32,
    command: String,
    /// It had mapped a driver at some time, and at some time without the library.
    has_driver: bool,
    is_bare: bool,
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
        json!({ "pid": self.pid, "command": self.command, "journal": self.job.is_some(), "calls": self.calls() })
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
            && let Some(why) = verdict(job).first().map(ToString::to_string)
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
        unseen(told, process);
    }
    told.look_at("");
    if reached().next().is_none() && told.list.len() == before {
        told.note("the command did not load the driver in this time")
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
    seen.entry(group.child().id()).or_default();
    let end = group.wait(setup.moment, |group| {
        for (process, _) in group.family() {
            look_at(process, environment, seen.entry(process).or_default());
        }
    })?;
    group.end();
    for path in journals_in(folder)? {
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

/// Checks whether a process used the driver past the library.
fn unseen(told: &mut Findings, process: &Process) {
    match &process.job {
        None if process.is_bare => told.warning("loaded the driver, and the library is not in it").advise(
            "Its LD_PRELOAD was cleared on the way (env -i, sudo, a launcher or container of its own), or the program \
                 is static or setuid: pass LD_PRELOAD on, or start it with vramshim run itself.",
        ),
        None if process.has_driver => told
            .note("loaded the driver and the library, but did not ask the library for memory")
            .advise("If nvidia-smi shows memory of it, it found the driver's functions by a way of its own."),
        Some(job) if job.header.unknown_frees > 0 => {
            let mut devices = job.ledger.devices.values();
            // Memory of a graph may be freed by an ordinary free.
            let severity = if devices.any(|device| device.classes.contains_key(&Class::Graph.number())) {
                Severity::Note
            } else {
                Severity::Warning
            };
            let times = times(job.header.unknown_frees);
            let found = format!("memory that was not allocated through the library was freed through it, {times}");
            told.tell(severity, found).advise(
                "Memory of a CUDA graph may be freed like this. Else something allocates past the library: a library with a \
                 copy of the driver's addresses from before, or one that reads ELF tables. That memory is not counted.",
            )
        }
        _ => return,
    };
}
