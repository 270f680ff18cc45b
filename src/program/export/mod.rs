//! Exports: what a journal says, in the formats of other programs.
//!
//! `exported_process` reads the records of a process, with its stacks and PyTorch's tensors (`tensors`). `moment` finds the
//! moment that an export shows. `csv` has the requests of a process, `parquet` (over `row`) and `perfetto` all events;
//! `collapsed` and `torch_snapshot` show one moment. `fleet` has tables for many jobs. Everything is written as it is read,
//! so the length of a journal does not matter.

mod collapsed;
mod csv;
mod exported_process;
pub mod fleet;
mod moment;
mod parquet;
mod perfetto;
mod row;
mod torch_snapshot;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use base::cuda::HOST_DEVICE;
use base::text::shown;
use base::units::size;

pub use exported_process::Process;
pub use moment::At;

use crate::output::Output;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// PyTorch's memory snapshot, for MemoryViz and _memory_viz.py
    TorchSnapshot,
    /// Perfetto's trace: counters, failures, marks, ranges
    Perfetto,
    /// Tables of events, stacks and frames: DuckDB, pyarrow, polars
    Parquet,
    /// One row for each request: spreadsheets, and what reads RMM's log
    Csv,
    /// Collapsed stacks: flamegraph.pl, inferno, speedscope
    Collapsed,
}

impl Format {
    /// What the names of such files end with.
    pub fn ending(self) -> &'static str {
        match self {
            Format::TorchSnapshot => "pickle",
            Format::Perfetto => "perfetto-trace",
            Format::Parquet => "parquet",
            Format::Csv => "csv",
            Format::Collapsed => "collapsed",
        }
    }

    /// Whether one file can hold several processes.
    pub fn holds_several(self) -> bool {
        !matches!(self, Format::TorchSnapshot | Format::Csv)
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    pub format: Format,
    /// `None`: the peak for collapsed stacks, the end for `TorchSnapshot`.
    pub at: Option<At>,
    pub out: PathBuf,
    pub force: bool,
}

#[derive(Debug)]
pub struct Done {
    pub files: Vec<PathBuf>,
    /// Events that were read, tensors included; of a CSV file, its rows.
    pub events: u64,
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{}: no request failed for lack of memory: use --at peak", shown(.0))]
    NoFailure(PathBuf),
    #[error("{}: the job had no device memory: use --at end", shown(.0))]
    NoMemory(PathBuf),
    /// Several processes, and none of them has the moment.
    #[error("{}", .0.join("\n"))]
    NoMoment(Vec<String>),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The files that an export can write: of Parquet, also those of the other tables.
pub fn files(request: &Request) -> Vec<PathBuf> {
    let mut files = vec![request.out.clone()];
    if request.format == Format::Parquet {
        let stem = request.out.file_stem().unwrap_or_default().to_string_lossy();
        let beside = |table: &str| request.out.with_file_name(format!("{stem}.{table}.parquet"));
        files.extend(["stacks", "frames"].map(beside));
    }
    files
}

fn memory_name(device: i16) -> String {
    match device {
        HOST_DEVICE => "host memory".to_owned(),
        device => format!("GPU {device}"),
    }
}

pub fn export(processes: &[Process], request: &Request) -> Result<Done, ExportError> {
    let mut run = Run {
        processes,
        request,
        done: Done {
            files: vec![request.out.clone()],
            events: 0,
            notes: processes.iter().flat_map(|process| process.notes.clone()).collect(),
        },
    };
    let mut out = Output::create(&request.out, request.force)?;
    match request.format {
        Format::Csv => run.csv(&mut out)?,
        Format::Perfetto => {
            let mut writer = perfetto::Writer::new(&mut out);
            for process in processes {
                writer.process(process)?;
                run.done.events += process.each(|_, record| writer.add(process, record))?;
            }
        }
        Format::Parquet => run.parquet(&mut out)?,
        Format::TorchSnapshot => run.torch_snapshot(&mut out)?,
        Format::Collapsed => run.collapsed(&mut out)?,
    }
    out.finish()?;
    let mut done = run.done;
    done.notes.extend(processes.iter().filter_map(Process::damage));
    Ok(done)
}

struct Run<'r> {
    processes: &'r [Process],
    request: &'r Request,
    done: Done,
}

impl Run<'_> {
    fn cut(&self, process: &Process, default: At) -> Result<moment::Cut, ExportError> {
        let at = self.request.at.unwrap_or(default);
        moment::find(process, at)?.ok_or_else(|| match at {
            At::Oom => ExportError::NoFailure(process.journal.path().to_owned()),
            At::Peak | At::End => ExportError::NoMemory(process.journal.path().to_owned()),
        })
    }

    fn csv(&mut self, out: &mut Output) -> io::Result<()> {
        for process in self.processes {
            let mut writer = csv::Writer::new(out)?;
            process.each(|_, record| writer.add(process, record))?;
            self.done.events += writer.count;
            if writer.devices.len() > 1 {
                let note = "what reads RMM's log takes all devices for one";
                self.done.notes.push(note.to_owned());
            }
            writer.finish()?;
        }
        Ok(())
    }

    fn collapsed(&mut self, out: &mut Output) -> Result<(), ExportError> {
        let several = self.processes.len() > 1;
        let mut lines = BTreeMap::new();
        let (mut held, mut without, mut left_out) = (0u64, BTreeMap::new(), Vec::new());
        for process in self.processes {
            let cut = match self.cut(process, At::Peak) {
                // Of several processes, those without the moment are left out.
                Err(why @ (ExportError::NoFailure(_) | ExportError::NoMemory(_))) if several => {
                    left_out.push(why.to_string());
                    continue;
                }
                cut => cut?,
            };
            let (sums, count) = collapsed::held(process, cut)?;
            self.done.events += count;
            for (key, &sum) in &sums {
                held = held.saturating_add(sum);
                if let Some(why) = process.frameless(key.stack) {
                    let bytes: &mut u64 = without.entry(process.frameless_in_words(why)).or_default();
                    *bytes = bytes.saturating_add(sum);
                }
            }
            collapsed::add(&mut lines, process, &sums, several);
        }
        if left_out.len() == self.processes.len() {
            return Err(ExportError::NoMoment(left_out));
        }
        self.done.notes.append(&mut left_out);
        let mut without: Vec<(String, u64)> = without.into_iter().collect();
        without.sort_by_key(|(_, bytes)| Reverse(*bytes));
        let told = without.into_iter();
        let told = told.map(|(why, bytes)| format!("{} of {} {why}", size(bytes), size(held)));
        self.done.notes.extend(told);
        Ok(collapsed::write(out, &lines)?)
    }

    fn torch_snapshot(&mut self, out: &mut Output) -> Result<(), ExportError> {
        for process in self.processes {
            let cut = self.cut(process, At::End)?;
            let written = torch_snapshot::write(process, cut, out)?;
            self.done.events += written.entries;
            if written.left_out > 0 {
                self.done.notes.push(format!(
                    "the snapshot has the last entries of its traces, and {} older ones are left out, because MemoryViz is \
                     slow with more: export to perfetto for a view of all",
                    written.left_out
                ));
            }
        }
        Ok(())
    }

    fn parquet(&mut self, out: &mut Output) -> io::Result<()> {
        let mut writer = parquet::Writer::new(out)?;
        for process in self.processes {
            writer.process();
            self.done.events += process.each(|_, record| writer.add(process, record))?;
        }
        let stacks = writer.finish()?;
        if stacks.is_empty() {
            return Ok(());
        }
        if self.request.out.as_os_str() == "-" {
            let note = "stacks are in files of their own, which need a name: use -o FILE";
            self.done.notes.push(note.to_owned());
            return Ok(());
        }
        self.done.files = files(self.request);
        let create = |place: usize| Output::create(&self.done.files[place], self.request.force);
        let (mut stacks_out, mut frames_out) = (create(1)?, create(2)?);
        stacks.write_stacks(&mut stacks_out)?;
        stacks.write_frames(&mut frames_out)?;
        stacks_out.finish()?;
        frames_out.finish()
    }
}
