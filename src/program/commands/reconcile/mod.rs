//! `vramshim reconcile`: ledger, driver and NVML side by side, every byte of difference under a name.

mod json;
mod round;
mod text;
mod watch;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

use base::units::parse_size;
use clap::Args;
use config::parse_duration;

use crate::analysis::side_by_side::{self, Device, Target};
use crate::analysis::{nvml, running};
use crate::failure::Failure;
use crate::journals::{collect, load};
use round::Round;
use watch::Interruptions;

const EXAMPLES: &str = "\
Examples:
  vramshim reconcile 4711                          # a running process, and everyone on its devices
  vramshim reconcile vramshim-train --bound 16MiB  # every process of a job
  vramshim reconcile 4711 --watch 5s               # again and again, until Ctrl-C
  vramshim reconcile vramshim-train --json | jq '.devices[].unknown'

Of a device, what NVML says is used = for each process under the library: reserved, context, module code, rounding \
(less managed memory that lies in host memory) + other processes + unknown. A process's own part is explained in this \
order, each name taking at most what there is evidence for:
  reserved      the journal's own account: requested, rounding of the policy, what it
                keeps free inside its segments, and the driver's pools
  context       what NVML said of the process beyond its ledger when the device was
                first used (basis: nvml); or what the whole device had then, if nobody
                else is known to have been there and it is at most 1 GiB (device); or
                as much as another process's context on this device (alike)
  rounding      of the driver, to pages of 2 MiB: at most what is left of pages that
                the ledger's memory covers in part
  module code   growth since then: at most the GPU code in the files that the
                process has mapped; none where its context is not known
  unknown       the rest; negative where the ledger has more than the driver

A running process is compared with what NVML says now; one that ended, and one that NVML cannot be asked about, as of \
the last measurement in its journal. Devices are told apart by UUID.

Exit code 1 where a difference without a name is larger than the bound, for a device or a process, or where there was \
nothing to compare with; 2 where an argument names nothing. With --watch, that of the last round; it ends when no \
process runs any more.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Reconcile {
    /// Ids of running processes, journals (.vraj), or folders of them (./4711 for one whose name is a number)
    #[arg(required = true, value_name = "PID|FOLDER|FILE")]
    what: Vec<PathBuf>,

    /// How large a difference without a name may be: code that the driver made or loaded from elsewhere has none
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    bound: String,

    /// Look again every so often, with a unit such as 500ms, 5s or 1min; 2s where none is given
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<String>,

    /// Print JSON, sizes in bytes; with --watch, a line for each round
    #[arg(long)]
    json: bool,
}

impl Reconcile {
    pub fn show(self) -> Result<(), Failure> {
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
        // Before the first round, so that Ctrl-C ends no round halfway.
        let interruptions = interval.is_some().then(Interruptions::hold);
        // A process is looked up once: its journal outlives it.
        let processes = self.processes()?;
        loop {
            let targets = self.targets(&processes)?;
            let (devices, running) = look(&targets)?;
            let round = Round { devices, bound };
            self.print(&round).map_err(Failure::unwritten)?;
            let again = match (&interruptions, interval) {
                (Some(interruptions), Some(interval)) => running && !interruptions.came_within(interval),
                _ => false,
            };
            if !again {
                return if round.within_bound() {
                    Ok(())
                } else {
                    Err(Failure::answer(1))
                };
            }
        }
    }

    /// The arguments that are ids of processes.
    fn processes(&self) -> Result<Vec<Target>, Failure> {
        let ids = self.what.iter().filter_map(|what| id(what));
        let target = |pid| {
            running::of(pid).map(|journal| Target {
                journal,
                pid: Some(pid),
            })
        };
        let (found, problems): (Vec<_>, Vec<_>) = ids.map(target).partition(Result::is_ok);
        match problems.into_iter().filter_map(Result::err).collect::<Vec<_>>() {
            problems if problems.is_empty() => Ok(found.into_iter().flatten().collect()),
            problems => Err(Failure::refused(problems.join("\n"))),
        }
    }

    /// Those, and the journals that the other arguments name now.
    fn targets(&self, processes: &[Target]) -> Result<Vec<Target>, Failure> {
        let paths: Vec<PathBuf> = self.what.iter().filter(|what| id(what).is_none()).cloned().collect();
        let mut problems = Vec::new();
        let mut targets: BTreeSet<Target> = processes.iter().cloned().collect();
        for journal in collect(&paths, &mut problems) {
            if !processes.iter().any(|process| process.journal == journal) {
                targets.insert(Target { journal, pid: None });
            }
        }
        if problems.is_empty() {
            Ok(targets.into_iter().collect())
        } else {
            Err(Failure::refused(problems.join("\n")))
        }
    }

    fn print(&self, round: &Round) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match (self.json, self.watch.is_some()) {
            (true, true) => writeln!(out, "{}", json::describe(round))?,
            (true, false) => writeln!(out, "{:#}", json::describe(round))?,
            (false, again) => text::write(&mut out, round, again)?,
        }
        out.flush()
    }
}

/// The id of a process, where an argument is one.
fn id(what: &std::path::Path) -> Option<u32> {
    let text = what.to_str()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// One look at everything, and whether any process still runs.
fn look(targets: &[Target]) -> Result<(Vec<Device>, bool), Failure> {
    let (mut devices, running, problems) = side_by_side::look(targets, &load);
    devices.sort_by(|one, other| (&one.uuid, one.at).cmp(&(&other.uuid, other.at)));
    let (early, problems): (Vec<_>, Vec<_>) = problems.into_iter().partition(|problem| problem.is_too_early());
    if !problems.is_empty() {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(Failure::refused(lines.join("\n")));
    }
    for note in early {
        eprintln!("vramshim: {note}");
    }
    Ok((devices, running))
}

/// The child's part: see `analysis::nvml`.
#[derive(Args)]
pub struct AskNvml {
    uuids: Vec<String>,
}

impl AskNvml {
    pub fn answer(self) -> Result<(), Failure> {
        let answer = serde_json::to_string(&nvml::answer(&self.uuids)).map_err(Failure::failed)?;
        writeln!(io::stdout(), "{answer}").map_err(Failure::unwritten)
    }
}
