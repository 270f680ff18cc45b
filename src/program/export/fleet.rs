//! Tables for many jobs: one row for each device of each process, and one for the failure that decided its verdict.
//! docs/fleet.md asks them.
//!
//! The tables have no unsigned numbers and no nanoseconds, because Spark reads neither.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use base::text::{events_were, many, shown};
use journal::reader::{Header, State};

use super::parquet::{Table, Value};
use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::finding::{Failure, Finding};
use crate::analysis::job::Job;
use crate::analysis::labels::Labels;
use crate::analysis::names::{api_name, device_uuid};
use crate::analysis::rank::rank;
use crate::analysis::secrets;
use crate::output::Output;

/// The version of the columns below.
const VERSION: (&str, &str) = ("vramshim.fleet_version", "2");

/// What both tables begin with.
const PROCESS: &str = "
    optional binary job (STRING);
    optional int32 rank;
    required binary host (STRING);
    required int32 pid;
    required int64 started_at (TIMESTAMP(MICROS, true));
    required binary command (STRING);
    required binary strategy (STRING);
    optional binary framework (STRING);
    optional binary runtime (STRING);
    optional binary driver (STRING);
    optional binary layer (STRING);
    required int32 device;
    optional binary device_name (STRING);
    optional binary device_uuid (STRING);
    optional int64 device_bytes;";

const DEVICES: &str = "
    required int64 ended_at (TIMESTAMP(MICROS, true));
    required binary outcome (STRING);
    optional int32 exit_status;
    optional int64 limit_bytes;
    required int64 peak_requested_bytes;
    required int64 peak_allocated_bytes;
    required int64 peak_reserved_bytes;
    required int64 allocations;
    required int64 failures;
    required int64 events_lost;";

const FAILURES: &str = "
    required int64 failed_at (TIMESTAMP(MICROS, true));
    required binary verdict (STRING);
    required boolean fatal;
    required binary api (STRING);
    required int64 requested_bytes;
    optional int64 live_bytes;
    optional int64 cached_bytes;
    optional int64 context_bytes;
    optional int64 others_bytes;
    optional int64 free_bytes;
    required binary stack (STRING);";

/// What was written.
#[derive(Debug, Default)]
pub struct Done {
    pub processes: u64,
    /// Rows of the table of failures.
    pub failures: u64,
    /// Journals that are not in the tables, and why.
    pub left_out: Vec<String>,
    /// What the reader of the tables should know of the others.
    pub notes: Vec<String>,
}

/// The files of the two tables in a folder.
pub fn files(folder: &Path) -> [PathBuf; 2] {
    ["devices.parquet", "failures.parquet"].map(|name| folder.join(name))
}

/// Writes the tables of these journals into a folder. A table that is there is replaced if `force` is set. A journal that
/// cannot be read is left out and named.
pub fn write(journals: &BTreeSet<PathBuf>, folder: &Path, force: bool) -> io::Result<Done> {
    std::fs::create_dir_all(folder)
        .map_err(|problem| io::Error::new(problem.kind(), format!("{}: {problem}", shown(folder))))?;
    let [devices_path, failures_path] = files(folder);
    let mut devices_out = Output::create(&devices_path, force)?;
    let mut failures_out = Output::create(&failures_path, force)?;
    let schema = |name: &str, more: &str| format!("message {name} {{{PROCESS}{more}\n}}");
    let mut devices = Table::new(&mut devices_out, &schema("devices", DEVICES), VERSION)?;
    let mut failures = Table::new(&mut failures_out, &schema("failures", FAILURES), VERSION)?;
    let mut done = Done::default();
    for path in journals {
        let job = match Job::load(path, |_, _| {}) {
            Ok(job) => job,
            Err(problem) => {
                done.left_out.push(problem.to_string());
                continue;
            }
        };
        // A device where the job neither had nor asked for memory has no row.
        let used = |ledger: &&DeviceLedger| ledger.all.count > 0 || ledger.failures > 0 || ledger.all.reserved.peak > 0;
        for (number, _, ledger) in job.devices() {
            if let Some(ledger) = ledger.filter(used) {
                devices.add(device_row(&job, number, ledger))?;
            }
        }
        let finding = job.finding();
        if let Some(failure) = &finding.failure {
            failures.add(failure_row(&job, &finding, failure))?;
            done.failures += 1;
        }
        done.processes += 1;
        done.notes.extend(incomplete(&job));
    }
    devices.close()?;
    failures.close()?;
    devices_out.finish()?;
    failures_out.finish()?;
    Ok(done)
}

/// The damaged and lost records of a journal, which the tables do not have.
fn incomplete(job: &Job) -> impl Iterator<Item = String> {
    let path = shown(&job.path);
    let damaged = (job.damaged > 0).then(|| format!("{path}: left out {}", many(job.damaged, "damaged record")));
    let lost = (job.lost > 0).then(|| format!("{path}: {} lost", events_were(job.lost)));
    damaged.into_iter().chain(lost)
}

/// Microseconds since 1970 of a time of the journal.
fn micros(job: &Job, time_ns: u64) -> u64 {
    job.header.wall_start_ns.saturating_add(time_ns) / 1000
}

/// What the rows of both tables begin with.
fn row_of_process(job: &Job, number: i16) -> Vec<Value> {
    let (header, device) = (&job.header, job.header.device(number));
    let software = |wanted: &str| -> Value {
        let found = header.software.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str()).into()
    };
    let job_name = job_name(header);
    vec![
        (!job_name.is_empty()).then_some(job_name).into(),
        rank(header).and_then(|rank| rank.parse::<i32>().ok()).into(),
        header.host.as_str().into(),
        header.pid.into(),
        micros(job, 0).into(),
        secrets::command_line(&header.command_line).join(" ").into(),
        header.strategy.as_str().into(),
        software("framework"),
        software("runtime"),
        software("driver"),
        software("layer"),
        number.into(),
        device.map(|device| device.name.as_str()).into(),
        device.and_then(|device| device_uuid(&device.uuid)).into(),
        device.map(|device| device.total_memory).into(),
    ]
}

fn device_row(job: &Job, number: i16, ledger: &DeviceLedger) -> Vec<Value> {
    let all = &ledger.all;
    let (outcome, status) = match job.state {
        State::Running | State::Dumped => ("running", None),
        State::Exited(status) => ("exited", Some(status)),
        State::Killed => ("killed", None),
    };
    let mut row = row_of_process(job, number);
    row.extend([
        micros(job, job.duration_ns).into(),
        outcome.into(),
        status.into(),
        job.header.device(number).and_then(|device| device.limit).into(),
        all.requested.peak.into(),
        all.allocated.peak.into(),
        all.reserved.peak.into(),
        all.count.into(),
        ledger.failures.into(),
        job.lost.into(),
    ]);
    row
}

fn failure_row(job: &Job, finding: &Finding, failure: &Failure) -> Vec<Value> {
    let (scene, parts) = (failure.scene, failure.shortage.parts);
    let labels = Labels::load(&job.path);
    let stack = labels.frames(scene.stack).map(|_| labels.stack(scene.stack));
    let mut row = row_of_process(job, scene.device);
    row.extend([
        micros(job, scene.time_ns).into(),
        finding.verdict.name().into(),
        finding.fatal.into(),
        api_name(scene.api).into(),
        scene.requested.into(),
        parts.map(|parts| parts.live).into(),
        parts.map(|parts| parts.cached).into(),
        parts.map(|parts| parts.context).into(),
        parts.and_then(|parts| parts.others).into(),
        parts.map(|parts| parts.free).into(),
        stack.unwrap_or_default().into(),
    ]);
    row
}

/// The name of the job that a process belongs to: its own, or Slurm's number, or the name of its script or program.
fn job_name(header: &Header) -> String {
    if !header.job.is_empty() {
        return header.job.clone();
    }
    if let Some(number) = header.variable("SLURM_JOB_ID") {
        return format!("slurm-{number}");
    }
    // The script, or else the program.
    let script = header.command_line.iter().skip(1).find(|word| word.ends_with(".py"));
    let word = script.or(header.command_line.first()).map(Path::new);
    let name = word.and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().into_owned()
}
