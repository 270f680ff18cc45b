//! Sequences of requests: journals of ours, CSV in the layout of RMM's logging adaptor
//! (`Thread,Time,Action,Pointer,Size,Stream`, plain or gzipped), and PyTorch's memory snapshots (`snapshot.rs`).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use vramshim::api::Class;
use vramshim::journal::format::{EXTENSION, Kind};
use vramshim::journal::reader::Journal;

use super::snapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `id` names the allocation until it is freed. `size` is bytes.
    Allocate {
        id: u64,
        size: u64,
        stream: u64,
    },
    Free {
        id: u64,
    },
}

/// What a trace was read from, and what that tells about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What reached the driver, under this strategy of ours with what the environment set (name, value).
    Journal {
        strategy: String,
        environment: Vec<(String, String)>,
    },
    /// RMM's log: what a program asked of its allocator.
    Log,
    /// What a program asked of PyTorch's allocator.
    Snapshot { expandable: bool },
}

#[derive(Debug)]
pub struct Trace {
    pub source: Source,
    pub requests: Vec<Request>,
    /// The most bytes that were live at once.
    pub peak_live: u64,
    /// Frees of what the trace never allocated; left out.
    pub unmatched: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TraceError {
    path: PathBuf,
    problem: String,
}

/// Gathers requests by address, and what is live.
#[derive(Default)]
pub(super) struct Gathering {
    requests: Vec<Request>,
    live: HashMap<u64, (u64, u64)>,
    next: u64,
    bytes: u64,
    peak: u64,
    unmatched: u64,
}

impl Gathering {
    pub(super) fn allocate(&mut self, address: u64, size: u64, stream: u64) {
        self.next += 1;
        if self.live.insert(address, (self.next, size)).is_some() {
            self.unmatched += 1;
        }
        // Nothing is no memory: every allocator answers it without one, and its free is then one of nothing.
        if size > 0 {
            self.requests.push(Request::Allocate {
                id: self.next,
                size,
                stream,
            });
        }
        self.bytes = self.bytes.saturating_add(size);
        self.peak = self.peak.max(self.bytes);
    }

    pub(super) fn free(&mut self, address: u64) {
        match self.live.remove(&address) {
            Some((_, 0)) => {}
            Some((id, size)) => {
                self.requests.push(Request::Free { id });
                self.bytes -= size;
            }
            None => self.unmatched += 1,
        }
    }
}

impl Trace {
    /// Reads a trace; its kind is told by its name (`.vraj`, `.csv`, `.csv.gz`, `.pickle`).
    pub fn load(path: &Path) -> Result<Trace, TraceError> {
        let fail = |problem: String| TraceError {
            path: path.to_owned(),
            problem,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let mut gathering = Gathering::default();
        if path.is_dir() {
            return Err(fail("is a folder: give one file of it".to_owned()));
        }
        let source = if name.ends_with(&format!(".{EXTENSION}")) {
            journal(path, &mut gathering).map_err(fail)?
        } else if name.ends_with(".pickle") || name.ends_with(".pkl") {
            snapshot::gather(path, &mut gathering).map_err(fail)?
        } else {
            let file = File::open(path).map_err(|problem| fail(format!("cannot be read: {problem}")))?;
            let source: Box<dyn Read> = match name.ends_with(".gz") {
                true => Box::new(MultiGzDecoder::new(file)),
                false => Box::new(file),
            };
            comma_separated(source, &mut gathering).map_err(fail)?;
            Source::Log
        };
        if gathering.requests.is_empty() {
            return Err(fail(
                "holds no request for linear device memory: give the trace of a job that allocated some".to_owned(),
            ));
        }
        let Gathering {
            requests,
            peak,
            unmatched,
            ..
        } = gathering;
        Ok(Trace {
            source,
            requests,
            peak_live: peak,
            unmatched,
        })
    }
}

fn journal(path: &Path, gathering: &mut Gathering) -> Result<Source, String> {
    let journal = Journal::open(path).map_err(|problem| {
        // It names the file, and so does what it becomes a part of.
        let problem = problem.to_string();
        let of_file = format!("{}: ", path.display());
        problem.strip_prefix(&of_file).unwrap_or(&problem).to_owned()
    })?;
    let mut requests: Vec<_> = Vec::new();
    for event in journal.events() {
        let record = event.map_err(|problem| problem.to_string())?.record;
        if record.class == Class::Linear.number() {
            requests.push(record);
        }
    }
    for record in requests {
        match Kind::from_number(record.kind) {
            Some(Kind::Alloc) => gathering.allocate(record.address, record.size, 0),
            Some(Kind::Free) => gathering.free(record.address),
            _ => {}
        }
    }
    Ok(Source::Journal {
        strategy: journal.header().strategy.clone(),
        environment: journal.header().environment.clone(),
    })
}

const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// What is wrong with a file that cannot be read on, and what to do about it.
fn unreadable(line: u64, error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Io(problem) if problem.kind() == std::io::ErrorKind::UnexpectedEof => {
            format!("line {line}: the compressed file is cut short: copy it again")
        }
        csv::ErrorKind::Io(problem) => format!("line {line}: cannot be read: {problem}: copy the file again"),
        csv::ErrorKind::Utf8 { .. } => format!("line {line}: is no text: give a CSV log, its columns {COLUMNS}"),
        _ => format!("line {line}: {error}"),
    }
}

fn comma_separated(source: impl Read, gathering: &mut Gathering) -> Result<(), String> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(BufReader::new(source));
    let header = reader.headers().map_err(|error| unreadable(1, &error))?.clone();
    if header.is_empty() {
        return Err(format!("is empty: expected a first line {COLUMNS}"));
    }
    let column = |name: &str| {
        let missing = || format!("line 1: has no column {name}: expected a first line {COLUMNS}");
        header.iter().position(|field| field.trim() == name).ok_or_else(missing)
    };
    let (action, pointer, size, stream) = (
        column("Action")?,
        column("Pointer")?,
        column("Size")?,
        column("Stream")?,
    );
    let mut row = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        if !reader.read_record(&mut row).map_err(|error| unreadable(line, &error))? {
            return Ok(());
        }
        let line = row.position().map_or(line, csv::Position::line);
        let field = |index: usize, name: &str| {
            let missing = || format!("line {line}: no {name}: the row is cut short, expected {COLUMNS}");
            row.get(index).map(str::trim).ok_or_else(missing)
        };
        let number = |index: usize, name: &str| {
            let text = field(index, name)?;
            let parsed = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => text.parse(),
            };
            parsed.map_err(|_| {
                format!(
                    "line {line}: {name} {text:?} is no number: expected a whole one, 0 or more, or 0x and hexadecimal"
                )
            })
        };
        let address = number(pointer, "Pointer")?;
        match field(action, "Action")? {
            "allocate" => gathering.allocate(address, number(size, "Size")?, number(stream, "Stream")?),
            "free" => gathering.free(address),
            // RMM logs failed allocations as well; they asked for memory that was never live.
            "allocate failure" => {}
            other => return Err(format!("line {line}: action {other:?} is neither allocate nor free")),
        }
    }
}
