//! `vramshim reconcile`: compares ledger, driver and NVML, and names every byte of difference.

mod device_tables;
mod interruptions;
mod json;
mod round;

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Write};
use std::path::PathBuf;

use base::units::parse_size;
use clap::Args;
use config::parse_duration;

use crate::analysis::running::{FileId, file_id};
use crate::analysis::side_by_side::{self, Device, Target};
use crate::analysis::{nvml, running};
use crate::escaped;
use crate::failure::Failure;
use crate::journals::{collect_quietly, load};
use crate::launch::options::with_unit;
use crate::say::say;
use interruptions::Interruptions;
use round::Round;

const EXAMPLES: &str = "\
Examples:
  vramshim reconcile 4711                          # a running process, and all others on its devices
  vramshim reconcile vramshim-train --bound 16MiB  # every process of a job
  vramshim reconcile 4711 --watch 5s               # every 5 seconds, until Ctrl-C
  vramshim reconcile vramshim-train --json | jq '.devices[].unknown'

The used bytes that NVML reports for a device are the sum of: reserved, context, module code and rounding of each process \
under the library (minus managed memory that lies in host memory); other processes; unknown. A process's part is explained in \
this order. Each name gets at most the bytes that there is evidence for:
  reserved      from the journal: requested bytes, the policy's rounding, free memory
                inside segments, and the driver's pools; in no record: bytes that the process
                had when it was measured, but whose records were lost or damaged
  context       basis nvml: what NVML reported beyond the ledger when the process
                first used the device; basis device: the smallest use of the device
                beyond the ledger, up to 1 GiB, if no other process is known to have
                used the device before; basis alike: the context of another process
  rounding      of the driver, to pages of 2 MiB: at most the uncovered bytes of the
                pages that the ledger's memory covers in part
  module code   loaded after the context was measured: at most the GPU code in the
                files that the process has mapped; 0 if its context is not known
  unknown       the remaining bytes; negative if the ledger has more than the driver

A running process is compared with what NVML reports now. A process that has ended, or that NVML cannot be asked about, is \
compared with the last measurement in its journal. Devices are identified by UUID.

Over a layer for GPU sharing, notes tell how far the layer's book (cuMemGetInfo) has drifted from the ledger since the first \
measurement, and whether NVML's figures are those of a layer.

Exit codes: 0 within the bound; 1 if the unknown of a device or a process is larger than the bound, if there was nothing \
to compare with, if a process obtained more than the bound after its last measurement and did not end with exit status 0, or if a journal cannot be read (the \
others are compared); 2 if an argument names nothing, or if there is no journal that can be read. With --watch it is the \
code of the last round; the command ends when no process runs any more.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Reconcile {
    /// Ids of running processes, journals (.vraj), or folders of journals; write ./4711 for a file whose name is a
    /// number
    #[arg(required = true, value_name = "PID|FOLDER|FILE")]
    what: Vec<PathBuf>,

    /// Largest unexplained difference that is accepted. A small difference always remains: code that the driver
    /// generates, or loads from other files
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    bound: String,

    /// Repeat at this interval, such as 500ms, 5s or 1min [without a value: 2s]
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<String>,

    /// Print JSON, sizes in bytes; with --watch, a line for each round
    #[arg(long)]
    json: bool,
}

impl Reconcile {
    pub fn show(self) -> Result<(), Failure> {
        with_unit("--bound", &self.bound)?;
        let bound = parse_size(&self.bound).ok_or_else(|| {
            Failure::refused(format!(
                "--bound {:?} is no size; give bytes or a unit, such as 64MiB",
                self.bound
            ))
        })?;
        let interval = self.watch.as_deref().map(|text| {
            parse_duration(text).ok_or_else(|| {
                Failure::refused(format!(
                    "--watch {text:?} is no interval; give a number with a unit, such as 500ms, 5s or 1min"
                ))
            })
        });
        let interval = interval.transpose()?;
        // Signals are blocked before the first round, so that Ctrl-C does not end a round halfway.
        let interruptions = interval.is_some().then(Interruptions::hold);
        // The journal of a process id is searched only once, so that later rounds can read the journal of a process
        // that has ended.
        let processes = self.processes()?;
        let mut told = BTreeSet::new();
        loop {
            let targets = self.targets(&processes, &mut told)?;
            let (devices, running, unread) = look(&targets)?;
            let round = Round { devices, bound };
            self.print(&round).map_err(Failure::unwritten)?;
            let again = match (&interruptions, interval) {
                (Some(interruptions), Some(interval)) => running && !interruptions.came_within(interval),
                _ => false,
            };
            if !again {
                return if round.within_bound() && !unread {
                    Ok(())
                } else {
                    Err(Failure::answer(1))
                };
            }
        }
    }

    /// The targets for the arguments that are process ids; fails if such a process writes no journal.
    fn processes(&self) -> Result<Vec<Target>, Failure> {
        let ids = self.what.iter().filter_map(|what| id(what));
        let target = |pid| {
            running::journal_of(pid).map(|journal| Target {
                journal,
                pid: Some(pid),
            })
        };
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for target in ids.map(target) {
            match target {
                Ok(target) => found.push(target),
                Err(why) => problems.push(why.to_string()),
            }
        }
        refused_if_any(&problems)?;
        Ok(found)
    }

    /// `processes`, and the journals that files and folders among the arguments name now. A copy that is left out is told
    /// once; `told` has what was told before.
    fn targets(&self, processes: &[Target], told: &mut BTreeSet<String>) -> Result<Vec<Target>, Failure> {
        let paths: Vec<PathBuf> = self.what.iter().filter(|what| id(what).is_none()).cloned().collect();
        let mut problems = Vec::new();
        let mut targets: BTreeSet<Target> = processes.iter().cloned().collect();
        // A journal can have several paths: that of its process's descriptor, a relative one, one through a link.
        let mut known: HashSet<FileId> = processes
            .iter()
            .filter_map(|process| file_id(&process.journal))
            .collect();
        let (journals, notes) = collect_quietly(&paths, &mut problems);
        for note in notes.into_iter().filter(|note| told.insert(note.clone())) {
            say!("{note}");
        }
        for journal in journals {
            if file_id(&journal).is_none_or(|file| known.insert(file)) {
                targets.insert(Target { journal, pid: None });
            }
        }
        refused_if_any(&problems)?;
        Ok(targets.into_iter().collect())
    }

    fn print(&self, round: &Round) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match (self.json, self.watch.is_some()) {
            (true, true) => escaped::line(&mut out, &json::describe(round))?,
            (true, false) => escaped::pretty(&mut out, &json::describe(round))?,
            (false, again) => device_tables::write(&mut out, round, again)?,
        }
        out.flush()
    }
}

fn refused_if_any(problems: &[String]) -> Result<(), Failure> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::refused(problems.join("\n")))
}

/// The argument as a process id; `None` if it contains other characters than digits.
fn id(what: &std::path::Path) -> Option<u32> {
    let text = what.to_str()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Compares all targets once. Returns the sorted devices, whether any process still runs, and whether a journal could
/// not be read. Such a journal is named; if there is no other, the comparison fails.
fn look(targets: &[Target]) -> Result<(Vec<Device>, bool, bool), Failure> {
    let (mut devices, running, problems) = side_by_side::look(targets, &load);
    devices.sort_by(|one, other| (&one.uuid, one.at).cmp(&(&other.uuid, other.at)));
    let (early, problems): (Vec<_>, Vec<_>) = problems.into_iter().partition(|problem| problem.is_too_early());
    if !targets.is_empty() && problems.len() + early.len() == targets.len() {
        let lines: Vec<String> = problems.iter().chain(&early).map(ToString::to_string).collect();
        return Err(Failure::refused(lines.join("\n")));
    }
    for note in early.iter().chain(&problems) {
        say!("{note}");
    }
    Ok((devices, running, !problems.is_empty()))
}

/// The hidden subcommand that a child process runs; see `analysis::nvml`.
#[derive(Args)]
pub struct AskNvml {
    /// Describe all devices, and these
    #[arg(long)]
    all: bool,
    uuids: Vec<String>,
}

impl AskNvml {
    pub fn answer(self) -> Result<(), Failure> {
        let answer = if self.all {
            serde_json::to_string(&nvml::answer_all(&self.uuids))
        } else {
            serde_json::to_string(&nvml::answer(&self.uuids))
        };
        let answer = answer.map_err(Failure::failed)?;
        writeln!(io::stdout(), "{answer}").map_err(Failure::unwritten)
    }
}
