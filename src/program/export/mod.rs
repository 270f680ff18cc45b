//! Exports: what a journal says, in the formats of other programs.
//!
//! `source` reads the records of a process, with its stacks and PyTorch's tensors (`tensors`). `moment` finds the
//! moment that an export shows. Formats with one row for each event (`csv`, `jsonl`, `parquet`, over `row`; `rmm_csv`)
//! and `perfetto` take all events; formats of stacks (`pprof`, `collapsed`, `speedscope`, over `holders`) and
//! `torch_snapshot` show one moment. `fleet` has tables for many jobs. Everything is written as it is read, so the length of a journal does not matter.

mod collapsed;
mod csv;
pub mod fleet;
mod holders;
mod jsonl;
mod moment;
mod parquet;
mod perfetto;
mod pprof;
mod rmm_csv;
mod row;
mod source;
mod speedscope;
mod torch_snapshot;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ::journal::format::Event;
use base::text::shown;
use base::units::size;

pub use moment::At;
pub use source::Process;
pub use torch_snapshot::Schema;

use crate::output::Output;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// PyTorch's memory snapshot, for MemoryViz and _memory_viz.py
    TorchSnapshot,
    /// Perfetto's trace: counters, failures, marks, ranges
    Perfetto,
    /// pprof's profile, gzipped: go tool pprof, speedscope, Pyroscope
    Pprof,
    /// Tables of events, stacks and frames: DuckDB, pyarrow, polars
    Parquet,
    /// RMM's log: vramshim replay, RMM's benchmarks
    RmmCsv,
    /// One row for each event
    Csv,
    /// One JSON object for each process, stack and event
    Jsonl,
    /// Collapsed stacks: flamegraph.pl, inferno
    Collapsed,
    /// speedscope (<https://www.speedscope.app>)
    Speedscope,
}

impl Format {
    /// What the names of such files end with.
    pub fn ending(self) -> &'static str {
        match self {
            Format::TorchSnapshot => "pickle",
            Format::Perfetto => "perfetto-trace",
            Format::Pprof => "pb.gz",
            Format::Parquet => "parquet",
            Format::RmmCsv => "rmm.csv",
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
            Format::Collapsed => "collapsed",
            Format::Speedscope => "speedscope.json",
        }
    }

    /// Whether the format shows one moment, so that `--at` chooses it.
    pub fn has_moment(self) -> bool {
        matches!(
            self,
            Format::TorchSnapshot | Format::Pprof | Format::Collapsed | Format::Speedscope
        )
    }

    /// Whether the file is text.
    pub fn is_text(self) -> bool {
        matches!(
            self,
            Format::RmmCsv | Format::Csv | Format::Jsonl | Format::Collapsed | Format::Speedscope
        )
    }

    /// Whether one file can hold several processes.
    pub fn holds_several(self) -> bool {
        !matches!(self, Format::TorchSnapshot | Format::RmmCsv)
    }
}

/// What to export, and how.
#[derive(Clone, Debug)]
pub struct Request {
    pub format: Format,
    /// `None`: the peak for formats of stacks, the end for `TorchSnapshot`.
    pub at: Option<At>,
    pub schema: Schema,
    /// The device of `RmmCsv`, whose log names none.
    pub device: Option<i16>,
    pub out: PathBuf,
    pub force: bool,
}

/// What was written.
#[derive(Debug, Default)]
pub struct Done {
    pub files: Vec<PathBuf>,
    /// Events that were read, tensors included; of RMM's log, its rows.
    pub events: u64,
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The job has no such moment, or the like.
    #[error("{0}")]
    Nothing(String),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The files that an export can write.
pub fn files(request: &Request) -> Vec<PathBuf> {
    let mut files = vec![request.out.clone()];
    if request.format == Format::Parquet {
        files.extend(["stacks", "frames"].map(|table| beside(&request.out, table)));
    }
    files
}

/// The file of another table of the same export.
fn beside(path: &Path, table: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}.{table}.parquet"))
}

/// Writes an export. `progress` gets the number of bytes read since its last call.
pub fn export(processes: &[Process], request: &Request, progress: &dyn Fn(u64)) -> Result<Done, ExportError> {
    let mut done = write(processes, request, progress)?;
    done.notes.extend(processes.iter().filter_map(Process::damage));
    Ok(done)
}

fn write(processes: &[Process], request: &Request, progress: &dyn Fn(u64)) -> Result<Done, ExportError> {
    let mut done = Done {
        notes: processes.iter().flat_map(|process| process.notes.clone()).collect(),
        ..Done::default()
    };
    let mut out = Output::create(&request.out, request.force)?;
    match request.format {
        Format::Csv => {
            let mut writer = csv::Writer::new(&mut out)?;
            for process in processes {
                done.events += process.each(progress, |_, record| writer.add(process, record))?;
            }
            writer.finish()?;
        }
        Format::Jsonl => {
            let mut writer = jsonl::Writer::new(&mut out);
            for process in processes {
                writer.process(process)?;
                done.events += process.each(progress, |_, record| writer.add(process, record))?;
            }
        }
        Format::Perfetto => {
            let mut writer = perfetto::Writer::new(&mut out);
            for process in processes {
                writer.process(process)?;
                done.events += process.each(progress, |_, record| writer.add(process, record))?;
            }
        }
        Format::Parquet => return parquet_files(processes, request, out, done, progress),
        Format::RmmCsv => rmm_log(processes, request, &mut out, &mut done, progress)?,
        Format::TorchSnapshot => torch_snapshot(processes, request, &mut out, &mut done, progress)?,
        Format::Pprof | Format::Collapsed | Format::Speedscope => {
            stacks(processes, request, &mut out, &mut done, progress)?;
        }
    }
    out.finish()?;
    done.files.push(request.out.clone());
    Ok(done)
}

/// The cut of a moment, and notes or an error if the process does not have it.
fn cut(process: &Process, request: &Request, default: At, progress: &dyn Fn(u64)) -> Result<moment::Cut, ExportError> {
    let at = request.at.unwrap_or(default);
    let found = moment::find(process, at, request.device, progress)?;
    found.ok_or_else(|| {
        let path = shown(process.path());
        ExportError::Nothing(match at {
            At::Oom => format!("{path}: no request failed for lack of memory: use --at peak"),
            _ => format!("{path}: the job had no device memory: use --at end"),
        })
    })
}

fn stacks(
    processes: &[Process],
    request: &Request,
    out: &mut Output,
    done: &mut Done,
    progress: &dyn Fn(u64),
) -> Result<(), ExportError> {
    let several = processes.len() > 1;
    let mut profile = pprof::Builder::new();
    let mut lines = BTreeMap::new();
    let mut document = speedscope::Document::default();
    let (mut held, mut without, mut left_out) = (0u64, BTreeMap::new(), Vec::new());
    for process in processes {
        let cut = match cut(process, request, At::Peak, progress) {
            Ok(cut) => cut,
            // Of several processes, those without the moment are left out.
            Err(ExportError::Nothing(why)) if several => {
                left_out.push(why);
                continue;
            }
            Err(error) => return Err(error),
        };
        let sums = holders::of(process, cut, progress)?;
        for (key, sum) in &sums {
            held = held.saturating_add(sum.held_bytes);
            if let Some(why) = process.frameless(key.stack).filter(|_| sum.held_bytes > 0) {
                let bytes: &mut u64 = without.entry(process.frameless_in_words(why)).or_default();
                *bytes = bytes.saturating_add(sum.held_bytes);
            }
            done.events += sum.all_count;
        }
        match request.format {
            Format::Pprof => profile.add(process, &sums, several),
            Format::Collapsed => collapsed::add(&mut lines, process, &sums, several),
            _ => document.add(process, &sums),
        }
    }
    if left_out.len() == processes.len() && several {
        return Err(ExportError::Nothing(left_out.join("\n")));
    }
    done.notes.append(&mut left_out);
    let mut without: Vec<(String, u64)> = without.into_iter().collect();
    without.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let told = without
        .into_iter()
        .map(|(why, bytes)| format!("{} of {} {why}", size(bytes), size(held)));
    done.notes.extend(told);
    let name = processes.first().map(Process::title).unwrap_or_default();
    match request.format {
        Format::Pprof => profile.write(out, &name)?,
        Format::Collapsed => collapsed::write(out, &lines)?,
        _ => document.write(out, &name)?,
    }
    Ok(())
}

fn torch_snapshot(
    processes: &[Process],
    request: &Request,
    out: &mut Output,
    done: &mut Done,
    progress: &dyn Fn(u64),
) -> Result<(), ExportError> {
    for process in processes {
        let cut = cut(process, request, At::End, progress)?;
        for written in torch_snapshot::write(process, request.schema, cut, out, progress)? {
            done.events += written.entries;
            if written.snapshot != written.ledger && !process.has_tensors() {
                let (snapshot, ledger) = (written.snapshot, written.ledger);
                done.notes.push(format!(
                    "GPU {}: the journal contradicts itself, so the snapshot has {} reserved and {} allocated, \
                     the ledger {} and {}",
                    written.device,
                    size(snapshot.reserved),
                    size(snapshot.allocated),
                    size(ledger.reserved),
                    size(ledger.allocated)
                ));
            }
        }
        if done.events > MANY_ENTRIES {
            done.notes.push(format!(
                "the snapshot has {} entries; MemoryViz is slow with more than {MANY_ENTRIES}: export to perfetto \
                 for a view of so many",
                done.events
            ));
        }
    }
    Ok(())
}

/// With more entries MemoryViz takes minutes.
const MANY_ENTRIES: u64 = 1_000_000;

fn rmm_log(
    processes: &[Process],
    request: &Request,
    out: &mut Output,
    done: &mut Done,
    progress: &dyn Fn(u64),
) -> Result<(), ExportError> {
    for process in processes {
        let mut devices: BTreeMap<i16, u128> = BTreeMap::new();
        process.each(progress, |_, record| {
            if let Event::Alloc(one) = record.event
                && rmm_csv::has_address(&one)
            {
                *devices.entry(record.device).or_default() += u128::from(one.requested);
            }
            Ok(())
        })?;
        let most = devices
            .iter()
            .max_by_key(|&(_, bytes)| bytes)
            .map(|(&device, _)| device);
        let device = match request.device.or(most) {
            Some(device) if devices.contains_key(&device) => device,
            Some(device) => {
                return Err(ExportError::Nothing(format!(
                    "the job used no memory of device {device}"
                )));
            }
            None => {
                return Err(ExportError::Nothing(
                    "the job used no device memory with addresses".to_owned(),
                ));
            }
        };
        if devices.len() > 1 && request.device.is_none() {
            done.notes.push(format!(
                "RMM's log names no devices: this is device {device} alone; choose with --device"
            ));
        }
        let mut writer = rmm_csv::Writer::new(out, device)?;
        process.each(progress, |_, record| writer.add(process, record))?;
        // The log has less than the journal: no segments, marks and measurements.
        done.events += writer.rows;
        if writer.left_out > 0 {
            done.notes.push(format!(
                "{} requests for memory without an address (arrays, cuMemCreate) are left out",
                writer.left_out
            ));
        }
    }
    Ok(())
}

fn parquet_files(
    processes: &[Process],
    request: &Request,
    mut out: Output,
    mut done: Done,
    progress: &dyn Fn(u64),
) -> Result<Done, ExportError> {
    let to_stdout = request.out.as_os_str() == "-";
    let mut writer = parquet::Writer::new(parquet::SendOutput(&mut out))?;
    for process in processes {
        writer.process();
        done.events += process.each(progress, |_, record| writer.add(process, record))?;
    }
    let stacks = writer.finish()?;
    if stacks.is_empty() || to_stdout {
        if to_stdout && !stacks.is_empty() {
            done.notes
                .push("stacks are in files of their own, which need a name: use -o FILE".to_owned());
        }
        out.finish()?;
        done.files.push(request.out.clone());
        return Ok(done);
    }
    let create = |path: &Path| Output::create(path, request.force);
    let (stacks_path, frames_path) = (beside(&request.out, "stacks"), beside(&request.out, "frames"));
    let (mut stacks_out, mut frames_out) = (create(&stacks_path)?, create(&frames_path)?);
    stacks.write_stacks(parquet::SendOutput(&mut stacks_out))?;
    stacks.write_frames(parquet::SendOutput(&mut frames_out))?;
    for (out, path) in [
        (out, request.out.clone()),
        (stacks_out, stacks_path),
        (frames_out, frames_path),
    ] {
        out.finish()?;
        done.files.push(path);
    }
    Ok(done)
}
