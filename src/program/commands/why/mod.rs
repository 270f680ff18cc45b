//! `vramshim why`: says why a job ran out of memory, who held the device, and what to do next.

mod explanation;
mod first_death;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::analysis::finding::Verdict;
use crate::analysis::job::{Job, LoadError};
use crate::analysis::labels::Labels;
use crate::analysis::live_set::{Catcher, LiveSet};
use crate::analysis::rank::rank;
use crate::failure::Failure;
use crate::inputs::MaxMemory;
use crate::journals::{collect, load, load_all, load_with, named};
use crate::number::at_least;
use crate::render::answer::Answer;
use crate::render::holders_and_next::{MOMENTS, answer, requests, set_of};
use crate::render::host_memory;
use crate::say::say;
use first_death::Run;

const EXAMPLES: &str = "\
Examples:
  vramshim why                                 # the newest job here
  vramshim why vramshim-train                  # the newest run of a job
  vramshim why vramshim-train/node1-4711-98765.vraj
  vramshim why vramshim-train --json | jq '.why.ledger'

The parts of the ledger sum to the device, to the byte:
  live       the job's allocations
  cached     obtained from the driver, but free inside
  context    what the driver holds for the process (or unknown)
  others     other processes, from NVML
  unknown    used, but by no process that is known

`live or cached` is known in sum alone: what a framework's cache holds free, it did not tell.

Of the processes of a run, the first that died for lack of memory is explained, or else the first that died. Journals that \
are named one by one count as one run.

Exit codes say the verdict:
   0  no request failed for lack of memory, or the job went on
   1  a journal cannot be read, and those that can be have no verdict
   2  wrong usage
  10  not enough evidence: not measured, lost or damaged
  11  the request is larger than the device
  12  the job's own live memory is too much
  13  live memory grew steadily (a leak)
  14  free memory that cannot be used: in pieces, or in use elsewhere
  15  other processes
  16  the limit that each process has for itself
  17  the limit that a group of processes shares
  18  a failure of the driver or the host
  19  larger than a single request may be (VRAMSHIM_MAX_REQUEST)
  20  the limit of a layer for GPU sharing

A job went on if it ended well, still runs, or still allocated memory 10 s later (if it was killed: allocated some, and ran \
for 10 s).";

/// The exit code of a verdict, which docs/stability.md promises.
const fn exit_code(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::NoneFailed => 0,
        Verdict::NotEnoughEvidence => 10,
        Verdict::LargerThanDevice => 11,
        Verdict::LiveSet => 12,
        Verdict::Growth => 13,
        Verdict::Unusable => 14,
        Verdict::OtherProcesses => 15,
        Verdict::Limit => 16,
        Verdict::GroupLimit => 17,
        Verdict::Guard => 19,
        Verdict::Layer => 20,
        Verdict::Driver => 18,
    }
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Why {
    /// Journals (.vraj), folders of them, snapshots (.pickle), RMM's logs (.csv), or `newest` [default: newest]
    #[arg(value_name = "FOLDER|FILE")]
    paths: Vec<PathBuf>,

    /// Print JSON with every figure, sizes in bytes
    #[arg(long)]
    json: bool,

    /// Number of holders to show
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least(1usize, usize::MAX))]
    top: usize,

    #[command(flatten)]
    memory: MaxMemory,
}

impl Why {
    pub fn explain(self) -> Result<(), Failure> {
        self.memory.set();
        let paths = named(&self.paths, false)?;
        let mut problems = Vec::new();
        let found = collect(&paths, &mut problems);
        let (is_single, mut set) = (found.len() == 1, None);
        let jobs = load_all(&found, &mut problems, |path| {
            if is_single {
                let (job, of_job) = caught(path)?;
                set = of_job;
                return Ok(job);
            }
            // Of several journals it is known later which is explained, and then that one is read again.
            let mut job = load(path)?;
            drop(job.ledger.take_live());
            Ok(job)
        });
        if jobs.is_empty() {
            return Err(Failure::failed(problems.join("\n")));
        }
        for problem in &problems {
            say!("{problem}");
        }
        let run = if paths.len() > 1 && paths.iter().all(|path| path.is_file()) {
            Run::of_all(jobs)
        } else {
            Run::newest(jobs)
        };
        let job = run.first();
        let set = if is_single {
            set
        } else {
            caught(&job.path).ok().and_then(|(_, set)| set)
        };
        let device = job.finding().failure.map(|failure| failure.scene.device);
        let labels = Labels::load(&job.path);
        let answer = answer(job, set, &labels, self.top, Some(&requests(&job.path, device)));
        super::print(self.json.then(|| page(&run, &answer)), |page| {
            explanation::show(page, &run, &answer)
        })?;
        match code(job) {
            0 if problems.is_empty() => Ok(()),
            0 => Err(Failure::answer(1)),
            code => Err(Failure::answer(code)),
        }
    }
}

/// A job, and what was live at the moment that its verdict is about.
fn caught(path: &Path) -> Result<(Job, Option<LiveSet>), LoadError> {
    let mut catcher = Catcher::new(&MOMENTS);
    let mut job = load_with(path, &mut [&mut catcher])?;
    let set = set_of(&mut job, catcher);
    Ok((job, set))
}

fn code(job: &Job) -> u8 {
    let finding = job.finding();
    if finding.fatal { exit_code(finding.verdict) } else { 0 }
}

fn page(run: &Run, answer: &Answer) -> Value {
    let job = answer.job;
    let process = |job: &Job| {
        json!({
            "pid": job.header.pid,
            "host": job.header.knows_process().then_some(&job.header.host),
            "rank": rank(&job.header),
            "job": job.title(),
            "path": job.path.to_string_lossy(),
            "verdict": job.finding().verdict.name(),
            "fatal": job.finding().fatal,
            "died_ns": first_death::died_ns(job),
            "exit_code": code(job),
            // Also of a job that went on or runs.
            "verdict_code": exit_code(job.finding().verdict),
        })
    };
    json!({
        "process": process(job),
        "why": answer.as_json(),
        // The file of a layer between library and driver, whose figures total and free are; null without one.
        "layer": job.header.layer(),
        "host_memory": host_memory::as_json(&job.ledger.host),
        "surges": job.ledger.surges.count,
        "holders": answer.holders.list,
        "holders_of": answer.holders.moment,
        "next": answer.next.iter().map(ToString::to_string).collect::<Vec<_>>(),
        // The same, each with what is known of its effect.
        "steps": answer.steps_as_json(),
        "replay": answer.replay,
        "processes": run.jobs.iter().map(process).collect::<Vec<_>>(),
        "older_processes": run.older,
        // The last process of an earlier run that died of a failed request; null if none did.
        "died_before": run.died_before.as_ref().map(process),
    })
}
