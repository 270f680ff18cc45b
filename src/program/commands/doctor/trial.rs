//! Runs the command for a limited time under the library, with journals in a temporary folder. Meanwhile it notes which
//! files the command's processes map, and how many bytes NVML reports for each process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use base::layers::known;
use journal::format::EXTENSION;
use serde::Serialize;

use super::ask;
use super::probe::{Holding, What};
use super::ways::Ways;
use crate::analysis::job::Job;
use crate::launch::environment::Environment;
use crate::launch::processes::{End, Group, lines_of};
use crate::render::format::printable;

/// How many bytes are kept of the end of the command's output.
const KEPT_BYTES: usize = 4 << 10;
/// The largest size of a journal in the temporary folder.
const JOURNAL_MAX: &str = "1GiB";

/// The files that a process had mapped, and the memory that it held.
#[derive(Debug, Default, Serialize)]
pub struct Seen {
    #[serde(skip)]
    command: String,
    /// At some time it had mapped a driver but not the library.
    #[serde(skip)]
    pub bare: bool,
    pub drivers: BTreeSet<String>,
    /// A driver file that was mapped more than once at the same time.
    #[serde(skip)]
    pub copied: Option<String>,
    pub runtimes: BTreeSet<String>,
    pub layers: BTreeSet<String>,
    /// The most bytes that NVML reported for the process, by the device's UUID.
    pub held: BTreeMap<String, u64>,
}

/// A process of the command.
#[derive(Serialize)]
pub struct Process {
    pub pid: u32,
    pub command: String,
    /// Whether it wrote a journal.
    journal: bool,
    #[serde(skip)]
    pub job: Option<Job>,
    #[serde(flatten)]
    pub ways: Option<Ways>,
    #[serde(flatten)]
    pub seen: Seen,
}

impl Process {
    fn new(pid: u32, job: Option<Job>, seen: Seen) -> Process {
        Process {
            pid,
            command: job
                .as_ref()
                .map_or_else(|| seen.command.clone(), |job| job.header.command_line.join(" ")),
            journal: job.is_some(),
            ways: job.as_ref().map(Ways::in_journal),
            job,
            seen,
        }
    }

    /// The text by which a finding names the process.
    pub fn place(&self) -> String {
        format!("process {}: {}", self.pid, printable(&self.command, 80))
    }
}

#[derive(Serialize)]
pub struct Trial {
    exit_status: Option<i32>,
    signal: Option<i32>,
    /// How the command ended, if it ended by itself.
    #[serde(skip)]
    pub ended: Option<ExitStatus>,
    /// Those with a journal come first.
    pub processes: Vec<Process>,
    /// Messages about journals that cannot be read.
    #[serde(skip)]
    pub unreadable: Vec<String>,
    /// The last line on standard error, or else on standard output.
    #[serde(skip)]
    pub last_line_written: Option<String>,
}

impl Trial {
    /// The processes with a journal.
    pub fn jobs(&self) -> impl Iterator<Item = (&Process, &Job)> {
        let processes = self.processes.iter();
        processes.filter_map(|process| Some((process, process.job.as_ref()?)))
    }
}

pub fn run(environment: &Environment, command: &[OsString], moment: Duration) -> io::Result<Option<Trial>> {
    let folder = tempfile::Builder::new().prefix("vramshim-doctor-").tempdir()?;
    let journals = folder.path().join("journals");
    let mut start = Command::new(&command[0]);
    start.args(&command[1..]);
    environment.apply(&mut start, &environment.preloads());
    start
        .env("VRAMSHIM_DIR", &journals)
        .env("VRAMSHIM_JOURNAL_MAX", JOURNAL_MAX);
    start.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());

    let memory = Memory::watch(environment);
    let mut group = Group::start(&mut start)?;
    let output = group.child().stdout.take().map(drain);
    let errors = group.child().stderr.take().map(drain);

    let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
    seen.entry(group.child().id()).or_default();
    let end = group.wait(moment, |group| {
        for (process, _) in group.family() {
            look_at(process, environment, seen.entry(process).or_default());
        }
    })?;
    let all_ended = group.end();
    let tails = [errors, output].map(|tail| ask::received(&tail?, all_ended).pop());
    let ended = match end {
        End::By(status) => Some(status),
        End::TooLong => None,
        End::Interrupted => return Ok(None),
    };
    if let Some(memory) = memory {
        memory.note(&mut seen);
    }
    let (jobs, unreadable) = load(&journals);
    let jobs = jobs.into_iter().map(|job| {
        let pid = job.header.pid;
        Process::new(pid, Some(job), seen.remove(&pid).unwrap_or_default())
    });
    let mut processes: Vec<Process> = jobs.collect();
    processes.extend(seen.into_iter().map(|(pid, seen)| Process::new(pid, None, seen)));
    Ok(Some(Trial {
        exit_status: ended.and_then(|status| status.code()),
        signal: ended.and_then(|status| status.signal()),
        ended,
        processes,
        unreadable,
        last_line_written: tails.iter().flatten().find_map(|tail| last_line(tail)),
    }))
}

/// Starts a thread that sends the last bytes of a pipe.
fn drain(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (send, last) = mpsc::channel();
    thread::spawn(move || {
        let mut tail = VecDeque::new();
        let mut buffer = [0u8; 8192];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            tail.extend(&buffer[..count]);
            let beyond = tail.len().saturating_sub(KEPT_BYTES);
            tail.drain(..beyond);
        }
        let _ = send.send(tail.into());
    });
    last
}

fn last_line(tail: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(tail);
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    line.map(|line| line.trim().to_owned())
}

/// Notes the files that the process has mapped now, and its command line.
fn look_at(process: u32, environment: &Environment, seen: &mut Seen) {
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{process}/maps")) else {
        return;
    };
    // How often the beginning of each driver's file is mapped.
    let mut drivers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut has_library = false;
    for line in maps.lines() {
        let Some(at) = line.find('/') else { continue };
        let path = line[at..].trim_end_matches(" (deleted)");
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.starts_with("libcuda.so") {
            let offset = line.split_ascii_whitespace().nth(2).unwrap_or_default();
            *drivers.entry(path).or_default() += u32::from(offset.bytes().all(|byte| byte == b'0'));
        } else if name.starts_with("libcudart.so") {
            seen.runtimes.insert(path.to_owned());
        }
        if environment.library.as_deref() == Some(Path::new(path)) {
            has_library = true;
        } else if known(path).is_some() {
            seen.layers.insert(path.to_owned());
        }
    }
    let copied = drivers.iter().find(|(_, times)| **times > 1);
    seen.copied = copied.map(|(path, _)| (*path).to_owned()).or(seen.copied.take());
    seen.bare |= !drivers.is_empty() && !has_library;
    seen.drivers.extend(drivers.into_keys().map(str::to_owned));
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned();
    if !line.is_empty() {
        seen.command = line;
    }
}

/// A child process that asks NVML repeatedly.
struct Memory {
    group: Group,
    lines: mpsc::Receiver<String>,
}

impl Memory {
    fn watch(environment: &Environment) -> Option<Memory> {
        let mut group = Group::start(&mut ask::command(What::Memory, environment, &[])).ok()?;
        let lines = lines_of(group.child().stdout.take()?);
        // The child's standard error is not read. It stays too short to fill the pipe.
        Some(Memory { group, lines })
    }

    /// Ends the child, and adds its figures to the processes of the command.
    fn note(mut self, seen: &mut BTreeMap<u32, Seen>) {
        let all_ended = self.group.end();
        for line in ask::received(&self.lines, all_ended) {
            let holdings: Vec<Holding> = serde_json::from_str(&line).unwrap_or_default();
            for held in holdings {
                if let Some(seen) = seen.get_mut(&held.process) {
                    let most = seen.held.entry(held.uuid).or_default();
                    *most = held.bytes.max(*most);
                }
            }
        }
    }
}

fn load(folder: &Path) -> (Vec<Job>, Vec<String>) {
    let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        match Job::load(&path, |_, _| {}) {
            Ok(job) => jobs.push(job),
            // The process was ended before it had written the header.
            Err(error) if error.is_too_early() => {}
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    jobs.sort_by_key(|job| (job.header.wall_start_ns, job.header.pid));
    (jobs, unreadable)
}
