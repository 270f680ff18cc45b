//! Tables for many jobs: one row for each device of each process, and one for the failure that decided its verdict. They
//! lie in folders `job=NAME/rank=N`, which DuckDB, Spark and others read as columns. docs/fleet.md asks them.
//!
//! The tables have no unsigned numbers and no nanoseconds, because Spark reads neither.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use base::text::{events_were, many, shown};
use journal::reader::{Device, Header, State, plain};

use super::parquet::{Table, Value};
use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::finding::Failure;
use crate::analysis::job::{Job, LoadError};
use crate::analysis::labels::Labels;
use crate::analysis::names::{api_name, device_uuid};
use crate::analysis::rank::rank;
use crate::analysis::secrets;
use crate::output::Output;

/// The version of the columns below.
const VERSION: (&str, &str) = ("vramshim.fleet_version", "1");

/// What both tables begin with.
const PROCESS: &str = "
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
    optional int64 peak_reserved_bytes;
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

#[derive(Debug, Default)]
pub struct Done {
    pub files: u64,
    pub processes: u64,
    /// Rows of the table of failures.
    pub failures: u64,
    /// Journals that are not in the tables, and why.
    pub left_out: Vec<String>,
    /// What the reader of the tables should know of the others.
    pub notes: Vec<String>,
}

/// Writes the tables of these journals into the folder `out`, which must be empty or new unless `force` is set. `may`
/// refuses a file that must stay. A journal that cannot be read is left out and named.
pub fn write(
    journals: &BTreeSet<PathBuf>,
    out: &Path,
    force: bool,
    may: &dyn Fn(&Path) -> io::Result<()>,
) -> io::Result<Done> {
    if !force && plain::entries_of(out).is_ok_and(|mut entries| entries.next().is_some()) {
        let told = format!(
            "{}: has files already: give another folder with -o, or --force",
            shown(out)
        );
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, told));
    }
    let mut done = Done::default();
    let mut tables = Tables {
        out,
        force,
        may,
        written: BTreeSet::new(),
    };
    for path in journals {
        match read(path) {
            Ok(process) => {
                process.write(&mut tables, &mut done)?;
                done.notes.extend(incomplete(&process.job));
            }
            Err(problem) => done.left_out.push(problem.to_string()),
        }
    }
    let failures = out.join("failures");
    if done.processes > 0 && !failures.exists() {
        // A question that names a table without a file is an error.
        let folder = Path::new(&format!("job={}", no_value())).join(format!("rank={}", no_value()));
        tables.add("failures", &folder, "none", FAILURES, Vec::new())?;
    }
    done.files = tables.written.len() as u64;
    Ok(done)
}

/// The damaged and lost records of a journal, which the tables do not have.
fn incomplete(job: &Job) -> impl Iterator<Item = String> {
    let path = shown(&job.path);
    let damaged = (job.damaged > 0).then(|| format!("{path}: left out {}", many(job.damaged, "damaged record")));
    let lost = (job.lost > 0).then(|| format!("{path}: {} lost", events_were(job.lost)));
    damaged.into_iter().chain(lost)
}

struct Tables<'a> {
    out: &'a Path,
    force: bool,
    may: &'a dyn Fn(&Path) -> io::Result<()>,
    /// The files that this run has written.
    written: BTreeSet<PathBuf>,
}

impl Tables<'_> {
    /// Writes one file of a table. Of two processes with one name, such as those of two containers, the second gets a number.
    fn add(&mut self, name: &str, partition: &Path, file: &str, more: &str, rows: Vec<Vec<Value>>) -> io::Result<()> {
        let folder = self.out.join(name).join(partition);
        std::fs::create_dir_all(&folder)
            .map_err(|problem| io::Error::new(problem.kind(), format!("{}: {problem}", shown(&folder))))?;
        let numbered = (2..).map(|number| folder.join(format!("{file}-{number}.parquet")));
        let mut names = std::iter::once(folder.join(format!("{file}.parquet"))).chain(numbered);
        let path = names.find(|path| !self.written.contains(path)).unwrap_or_default();
        (self.may)(&path)?;
        let mut output = Output::create(&path, self.force)?;
        let schema = format!("message {name} {{{PROCESS}{more}\n}}");
        let mut table = Table::new(&mut output, &schema, VERSION)?;
        rows.into_iter().try_for_each(|row| table.add(row))?;
        table.close()?;
        output.finish()?;
        self.written.insert(path);
        Ok(())
    }
}

struct Process {
    job: Job,
    /// Where the last failed request came from; empty if that is not known.
    stack: String,
}

fn read(path: &Path) -> Result<Process, LoadError> {
    let job = Job::load(path, |_, _| {})?;
    let stack = job.finding().failure.map(|failure| failure.scene.stack);
    let named = stack.and_then(|stack| {
        let labels = Labels::load(path);
        labels.frames(stack).is_ok().then(|| labels.stack(stack))
    });
    let stack = named.unwrap_or_default();
    Ok(Process { job, stack })
}

impl Process {
    fn write(&self, tables: &mut Tables, done: &mut Done) -> io::Result<()> {
        let header = &self.job.header;
        let partition = Path::new(&format!("job={}", folder_name(&job_name(header)))).join(format!(
            "rank={}",
            rank(header).map_or_else(no_value, |rank| folder_name(&rank))
        ));
        let file = format!("{}-{}-{}", folder_name(&header.host), header.pid, header.wall_start_ns);
        // A device where the job neither had nor asked for memory has no row.
        let used =
            |ledger: &&DeviceLedger| ledger.all.count > 0 || ledger.failed_calls > 0 || ledger.all.reserved.peak > 0;
        let devices = self.job.devices().into_iter();
        let rows = devices.filter_map(|(number, _, ledger)| Some(self.device_row(number, ledger.filter(used)?)));
        let rows: Vec<Vec<Value>> = rows.collect();
        if !rows.is_empty() {
            tables.add("devices", &partition, &file, DEVICES, rows)?;
        }
        done.processes += 1;
        if let Some(failure) = &self.job.finding().failure {
            tables.add("failures", &partition, &file, FAILURES, vec![self.failure_row(failure)])?;
            done.failures += 1;
        }
        Ok(())
    }

    /// Microseconds since 1970 of a time of the journal.
    fn micros(&self, time_ns: u64) -> u64 {
        self.job.header.wall_start_ns.saturating_add(time_ns) / 1000
    }

    fn device(&self, number: i16) -> Option<&Device> {
        let mut devices = self.job.header.devices.iter();
        devices.find(|device| device.ordinal == i32::from(number))
    }

    /// What the rows of both tables begin with.
    fn row_of_process(&self, number: i16) -> Vec<Value> {
        let (header, device) = (&self.job.header, self.device(number));
        let software = |wanted: &str| -> Value {
            let found = header.software.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.as_str()).into()
        };
        vec![
            header.host.as_str().into(),
            header.pid.into(),
            self.micros(0).into(),
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

    fn device_row(&self, number: i16, ledger: &DeviceLedger) -> Vec<Value> {
        let (job, all) = (&self.job, &ledger.all);
        let (outcome, status) = match job.state {
            State::Running | State::Dumped => ("running", None),
            State::Exited(status) => ("exited", Some(status)),
            State::Killed => ("killed", None),
        };
        let mut row = self.row_of_process(number);
        row.extend([
            self.micros(job.duration_ns).into(),
            outcome.into(),
            status.into(),
            self.device(number).and_then(|device| device.limit).into(),
            all.requested.peak.into(),
            all.allocated.peak.into(),
            job.knows_reserved(ledger).then_some(all.reserved.peak).into(),
            all.count.into(),
            ledger.failed_calls.into(),
            job.lost.into(),
        ]);
        row
    }

    fn failure_row(&self, failure: &Failure) -> Vec<Value> {
        let (finding, parts) = (self.job.finding(), failure.shortage.parts);
        let mut row = self.row_of_process(failure.scene.device);
        row.extend([
            self.micros(failure.scene.time_ns).into(),
            finding.verdict.name().into(),
            finding.fatal.into(),
            api_name(failure.scene.api).into(),
            failure.scene.requested.into(),
            parts.map(|parts| parts.live).into(),
            parts.map(|parts| parts.cached).into(),
            parts.map(|parts| parts.context).into(),
            parts.and_then(|parts| parts.others).into(),
            parts.map(|parts| parts.free).into(),
            self.stack.as_str().into(),
        ]);
        row
    }
}

/// The name of the job that a process belongs to: its own, or Slurm's number, or the name of its script or program.
fn job_name(header: &Header) -> String {
    if !header.job.is_empty() {
        return header.job.clone();
    }
    let slurm = header.environment.iter().find(|(name, _)| name == "SLURM_JOB_ID");
    if let Some((_, number)) = slurm {
        return format!("slurm-{number}");
    }
    // The script, or else the program.
    let script = header.command_line.iter().skip(1).find(|word| word.ends_with(".py"));
    let word = script.or(header.command_line.first()).map(Path::new);
    let name = word.and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// What Hive, Spark and DuckDB read as no value.
fn no_value() -> String {
    "__HIVE_DEFAULT_PARTITION__".to_owned()
}

/// The text as a name of a folder, in the way of Hive: other bytes than letters, digits, `-`, `_` and `.` become `%XX`.
fn folder_name(text: &str) -> String {
    const LONGEST_BYTES: usize = 120;
    if text.is_empty() {
        return no_value();
    }
    let mut name = String::new();
    for byte in text.bytes() {
        // A name of dots alone is no name of a folder.
        let is_plain = byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || byte == b'.' && !name.is_empty();
        if is_plain {
            name.push(byte as char);
        } else {
            let _ = write!(name, "%{byte:02X}");
        }
        if name.len() >= LONGEST_BYTES {
            break;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::folder_name;

    #[test]
    fn names_of_folders_lead_nowhere_else() {
        assert_eq!(folder_name("train-7.py"), "train-7.py");
        assert_eq!(folder_name("../a=b/c d\n"), "%2E.%2Fa%3Db%2Fc%20d%0A");
        assert_eq!(folder_name(""), "__HIVE_DEFAULT_PARTITION__");
        assert!(folder_name(&"é".repeat(200)).len() <= 130);
    }
}
