//! Runs the command for a limited time under the library, with journals in a temporary folder. Meanwhile it notes which
//! files the command's processes map, and how many bytes NVML reports for each process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use journal::format::EXTENSION;

use super::ask;
use super::layers;
use super::probe::{Holding, What};
use crate::analysis::job::Job;
use crate::launch::environment::Environment;
use crate::launch::processes::{End, Group, lines_of};

/// How many bytes are kept of the end of the command's output.
const KEPT_BYTES: usize = 4 << 10;
/// The largest size of a journal in the temporary folder.
const JOURNAL_MAX: &str = "1GiB";

/// What the trial saw of one process of the command.
#[derive(Debug, Default)]
pub struct Seen {
    pub command: String,
    /// `library`: the process had mapped the library. `bare`: at some time it had mapped a driver but not the library.
    pub library: bool,
    pub bare: bool,
    pub drivers: BTreeSet<String>,
    /// A driver file that was mapped more than once at the same time.
    pub copied: Option<String>,
    pub runtimes: BTreeSet<String>,
    pub layers: BTreeSet<String>,
    /// The most bytes that NVML reported for the process, by the device's UUID.
    pub holds: BTreeMap<String, u64>,
}

pub struct Trial {
    /// How the command ended, if it ended by itself.
    pub ended: Option<ExitStatus>,
    pub seen: BTreeMap<u32, Seen>,
    pub jobs: Vec<Job>,
    /// Messages about journals that cannot be read.
    pub unreadable: Vec<String>,
    /// The last line that the command itself wrote to standard error, or else to standard output. If it wrote none, that
    /// of the library.
    pub last_line_written: Option<String>,
}

pub fn run(
    environment: &Environment,
    command: &[OsString],
    moment: Duration,
    show: bool,
) -> Result<Option<Trial>, String> {
    let folder = tempfile::Builder::new().prefix("vramshim-doctor-").tempdir();
    let folder = folder.map_err(|error| format!("no temporary folder for journals: {error}"))?;
    let journals = folder.path().join("journals");
    let mut start = Command::new(&command[0]);
    start.args(&command[1..]);
    environment.apply(&mut start, &environment.preloads());
    start
        .env("VRAMSHIM_DIR", &journals)
        .env("VRAMSHIM_JOURNAL_MAX", JOURNAL_MAX);
    start.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());

    let memory = Memory::watch(environment);
    let mut group = Group::start(&mut start).map_err(|error| format!("it cannot be started: {error}"))?;
    let output = group.child().stdout.take().map(|pipe| drain(pipe, show));
    let errors = group.child().stderr.take().map(|pipe| drain(pipe, show));

    let mut seen = BTreeMap::new();
    let leader = group.child().id();
    let end = group.wait(moment, |group| {
        for (process, _) in group.family() {
            look_at(process, environment, seen.entry(process).or_default());
        }
    });
    let end = end.map_err(|error| format!("it cannot be waited for: {error}"))?;
    let all_ended = group.end();
    let tails = [errors, output].map(|tail| ask::received(&tail?, all_ended).pop());
    if end == End::Interrupted {
        return Ok(None);
    }
    seen.entry(leader).or_default();
    if let Some(memory) = memory {
        memory.note(&mut seen);
    }
    let (jobs, unreadable) = load(&journals);
    Ok(Some(Trial {
        ended: match end {
            End::By(status) => Some(status),
            _ => None,
        },
        seen,
        jobs,
        unreadable,
        last_line_written: last_line(&tails.map(Option::unwrap_or_default)),
    }))
}

/// Starts a thread that sends the last bytes of a pipe. If `show` is true, it writes all bytes to standard error.
fn drain(mut pipe: impl Read + Send + 'static, show: bool) -> mpsc::Receiver<Vec<u8>> {
    let (send, last) = mpsc::channel();
    thread::spawn(move || {
        let mut tail = VecDeque::new();
        let mut buffer = [0u8; 8192];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            if show {
                let _ = std::io::stderr().write_all(&buffer[..count]);
            }
            tail.extend(&buffer[..count]);
            let beyond = tail.len().saturating_sub(KEPT_BYTES);
            tail.drain(..beyond);
        }
        let _ = send.send(tail.into());
    });
    last
}

fn last_line(tails: &[Vec<u8>]) -> Option<String> {
    let texts: Vec<_> = tails.iter().map(|tail| String::from_utf8_lossy(tail)).collect();
    let last = |of_library: bool| {
        let last_of = |text: &str| {
            lines(text)
                .filter(|(of, _)| *of == of_library)
                .last()
                .map(|(_, line)| line.to_owned())
        };
        texts.iter().find_map(|text| last_of(text))
    };
    last(false).or_else(|| last(true))
}

/// The lines that are not blank, and for each whether the library wrote it. Lines of a message of the library after the
/// first one begin with four blanks; they are left out.
fn lines(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut follows = false;
    text.lines().filter_map(move |line| {
        let of_library = is_of_library(line);
        follows = of_library || follows && line.starts_with("    ");
        let is_kept = !line.trim().is_empty() && follows == of_library;
        is_kept.then_some((of_library, line.trim()))
    })
}

/// Whether the line begins as a message of the library: `E0715 14:25:17.112233 12345 engine.rs:88] `.
fn is_of_library(line: &str) -> bool {
    let mut fields = line.splitn(5, ' ');
    let mut next = || fields.next().unwrap_or_default();
    let (day, time, thread, place) = (next(), next(), next(), next());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let letter = day.chars().next().is_some_and(|letter| "EWID".contains(letter));
    letter
        && day.len() == 5
        && is_number(&day[1..])
        && time.len() == "14:25:17.112233".len()
        && is_number(thread)
        && place.ends_with(']')
        && place.contains(".rs:")
}

/// Notes the files that the process has mapped now, and its command line.
fn look_at(process: u32, environment: &Environment, seen: &mut Seen) {
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{process}/maps")) else {
        return;
    };
    let mut copies: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut library, mut driver) = (false, false);
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let offset = fields.nth(2);
        let Some(at) = line.find('/') else { continue };
        let path = line[at..].trim_end_matches(" (deleted)");
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.starts_with("libcuda.so") {
            driver = true;
            if offset.is_some_and(|offset| offset.bytes().all(|byte| byte == b'0')) {
                *copies.entry(path).or_default() += 1;
            }
            if !seen.drivers.contains(path) {
                seen.drivers.insert(path.to_owned());
            }
        } else if name.starts_with("libcudart.so") && !seen.runtimes.contains(path) {
            seen.runtimes.insert(path.to_owned());
        }

        if environment.library.as_deref() == Some(Path::new(path)) {
            library = true;
        } else if layers::project(Path::new(path)).is_some() && !seen.layers.contains(path) {
            seen.layers.insert(path.to_owned());
        }
    }
    let copied = copies.into_iter().find(|(_, count)| *count > 1);
    if let Some((path, _)) = copied {
        seen.copied = Some(path.to_owned());
    }
    seen.library |= library;
    seen.bare |= driver && !library;
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let arguments: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    let line = arguments.join(" ").trim().to_owned();
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
                    let most = seen.holds.entry(held.uuid).or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_that_of_the_job() {
        let library = "E1127 07:20:44.120011 4711 out_of_memory.rs:88] cudaMalloc: no memory\n    device 0\n    see: vramshim why /tmp/x\n";
        let of = |errors: &str, output: &str| last_line(&[errors.into(), output.into()]);
        let told = of(&format!("job: starts\n{library}job: gives up\n{library}"), "printed\n");
        assert_eq!(told.as_deref(), Some("job: gives up"));
        assert_eq!(of(library, "printed\n").as_deref(), Some("printed"));
        assert_eq!(
            of(library, "").as_deref(),
            Some("E1127 07:20:44.120011 4711 out_of_memory.rs:88] cudaMalloc: no memory")
        );
        assert_eq!(of("Traceback:\n    raise Error\n", "").as_deref(), Some("raise Error"));
        assert_eq!(of("", "\n"), None);
    }
}
