//! `vramshim reconcile`: compares ledger, driver and NVML, and names every byte of difference.

mod device_tables;
mod round;

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::analysis::running::{FileId, file_id};
use crate::analysis::side_by_side::{self, Device, Target};
use crate::analysis::{nvml, running};
use crate::failure::Failure;
use crate::journals::{collect, load};
use crate::number::size;
use crate::say::say;
use round::Round;

const EXAMPLES: &str = "\
Examples:
  vramshim reconcile 4711                          # a running process, and all others on its devices
  vramshim reconcile vramshim-train --bound 16MiB  # every process of a job
  vramshim reconcile vramshim-train --json | jq '.devices[].unknown'

A process's bytes are explained in this order; each name gets at most the bytes that there is evidence for:
  reserved, in no record   from the journal; measured, but the records were lost or damaged
  context                  what NVML (nvml), the device (device) or another process (alike) had at first use;
                           device_or_others: it is not known who else was there
  rounding                 of the driver, to pages of 2 MiB
  module code              at most the GPU code in the files that the process has mapped
  unknown                  the rest; negative if the ledger has more than the driver

A running process is compared with what NVML reports now, another one with the last measurement in its journal.

Exit codes: 0 within the bound; 1 if the unknown of a device or a process is larger than the bound, if there was nothing \
to compare with, if a process obtained more than the bound after its last measurement and did not end with exit status 0, or if a journal cannot be read (the \
others are compared); 2 if an argument names nothing, or if there is no journal that can be read.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Reconcile {
    /// Ids of running processes, journals (.vraj), or folders of journals; write ./4711 for a file whose name is a
    /// number
    #[arg(required = true, value_name = "PID|FOLDER|FILE")]
    what: Vec<PathBuf>,

    /// Largest unexplained difference that is accepted. A small difference always remains: code that the driver
    /// generates, or loads from other files
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    bound: u64,

    /// Print JSON, sizes in bytes
    #[arg(long)]
    json: bool,
}

impl Reconcile {
    pub fn show(self) -> Result<(), Failure> {
        let targets = self.targets()?;
        let (devices, is_unread) = look(&targets)?;
        let bound = self.bound;
        let round = Round { devices, bound };
        super::print(self.json.then(|| round.as_json()), |page| {
            device_tables::show(page, &round)
        })?;
        if round.within_bound() && !is_unread {
            Ok(())
        } else {
            Err(Failure::answer(1))
        }
    }

    /// What the arguments name; fails if a process writes no journal.
    fn targets(&self) -> Result<Vec<Target>, Failure> {
        let mut problems = Vec::new();
        let mut targets = BTreeSet::new();
        for pid in self.what.iter().filter_map(|what| id(what)) {
            match running::journal_of(pid) {
                Ok(journal) => drop(targets.insert(Target {
                    journal,
                    pid: Some(pid),
                })),
                Err(why) => problems.push(why.to_string()),
            }
        }
        // A journal can have several paths: that of its process's descriptor, a relative one, one through a link.
        let mut known: HashSet<FileId> = targets.iter().filter_map(|target| file_id(&target.journal)).collect();
        let paths: Vec<PathBuf> = self.what.iter().filter(|what| id(what).is_none()).cloned().collect();
        for journal in collect(&paths, &mut problems) {
            if file_id(&journal).is_none_or(|file| known.insert(file)) {
                targets.insert(Target { journal, pid: None });
            }
        }
        match problems.is_empty() {
            true => Ok(targets.into_iter().collect()),
            false => Err(Failure::refused(problems.join("\n"))),
        }
    }
}

/// The argument as a process id; `None` if it contains other characters than digits.
fn id(what: &std::path::Path) -> Option<u32> {
    let text = what.to_str()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Compares all targets. Returns the sorted devices, and whether a journal could not be read. Such a journal is named; if
/// there is no other, the comparison fails.
fn look(targets: &[Target]) -> Result<(Vec<Device>, bool), Failure> {
    let (mut devices, problems) = side_by_side::look(targets, &|path| load(&running::path_of(path)));
    devices.sort_by(|one, other| (&one.uuid, one.at).cmp(&(&other.uuid, other.at)));
    let (early, problems): (Vec<_>, Vec<_>) = problems.into_iter().partition(|problem| problem.is_too_early());
    if !targets.is_empty() && problems.len() + early.len() == targets.len() {
        let lines: Vec<String> = problems.iter().chain(&early).map(ToString::to_string).collect();
        return Err(Failure::refused(lines.join("\n")));
    }
    for note in early.iter().chain(&problems) {
        say!("{note}");
    }
    Ok((devices, !problems.is_empty()))
}

/// The hidden subcommand that a child process runs; see `analysis::nvml`.
#[derive(Args)]
pub struct AskNvml {
    /// Devices to describe besides those that NVML counts
    uuids: Vec<String>,
}

impl AskNvml {
    pub fn answer(self) -> Result<(), Failure> {
        let answer = serde_json::to_string(&nvml::answer(&self.uuids)).map_err(Failure::failed)?;
        writeln!(io::stdout(), "{answer}").map_err(Failure::unwritten)
    }
}
