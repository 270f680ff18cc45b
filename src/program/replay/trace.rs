//! Sequences of requests: journals of ours, CSV in the layout of RMM's logging adaptor
//! (`Thread,Time,Action,Pointer,Size,Stream`, plain or gzipped), and PyTorch's memory snapshots (`snapshot.rs`).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use base::api::Class;
use flate2::read::MultiGzDecoder;
use journal::format::{EXTENSION, Event};
use journal::reader::Journal;

use super::snapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `id` names the allocation until it is freed. `size` is bytes. `stream` is the one that it is used on, where the
    /// request names it.
    Allocate { id: u64, size: u64, stream: Option<u64> },
    /// `stream` is the one whose work may have used it, where no other can have.
    Free { id: u64, stream: Option<u64> },
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
    /// Frees of what the trace never allocated, left out, and addresses allocated while live, which stand for a free.
    pub unmatched: u64,
    /// What the figures do not cover.
    pub notes: Vec<String>,
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
    /// By address: id, size and stream.
    live: HashMap<u64, (u64, u64, Option<u64>)>,
    next: u64,
    /// Wider than any sum of what a file can claim.
    bytes: u128,
    peak: u128,
    unmatched: u64,
    notes: Vec<String>,
}

impl Gathering {
    pub(super) fn allocate(&mut self, address: u64, size: u64, stream: Option<u64>) {
        if self.live.contains_key(&address) {
            // Its free is missing: nothing can be in the same place twice.
            self.unmatched += 1;
            self.free_used_alone(address);
        }
        self.next += 1;
        self.live.insert(address, (self.next, size, stream));
        // Nothing is no memory: every allocator answers it without one, and its free is then one of nothing.
        if size > 0 {
            self.requests.push(Request::Allocate {
                id: self.next,
                size,
                stream,
            });
        }
        self.bytes += u128::from(size);
        self.peak = self.peak.max(self.bytes);
    }

    /// Of a block that only the stream has used that it was allocated for.
    pub(super) fn free_used_alone(&mut self, address: u64) {
        let stream = self.live.get(&address).and_then(|&(_, _, stream)| stream);
        self.free(address, stream);
    }

    fn free(&mut self, address: u64, stream: Option<u64>) {
        match self.live.remove(&address) {
            Some((_, 0, _)) => {}
            Some((id, size, _)) => {
                self.requests.push(Request::Free { id, stream });
                self.bytes -= u128::from(size);
            }
            None => self.unmatched += 1,
        }
    }
}

impl Trace {
    /// Reads a trace; its kind is told by its name (`.vraj`, `.csv`, `.csv.gz`, `.pickle`). Of a journal or a snapshot
    /// the requests of `device`, or of the one that was asked for most.
    pub fn load(path: &Path, device: Option<i16>) -> Result<Trace, TraceError> {
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
            journal(path, device, &mut gathering).map_err(fail)?
        } else if name.ends_with(".pickle") || name.ends_with(".pkl") {
            snapshot::gather(path, device, &mut gathering).map_err(fail)?
        } else {
            if device.is_some() {
                return Err(fail("is a log, which names no devices: leave --device out".to_owned()));
            }
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
            notes,
            ..
        } = gathering;
        Ok(Trace {
            source,
            requests,
            peak_live: u64::try_from(peak).unwrap_or(u64::MAX),
            unmatched,
            notes,
        })
    }
}

/// The device whose requests are played: the one that was asked for, or the one with the most. What it leaves out is
/// noted.
pub(super) fn choose_device<T>(
    what: &str,
    devices: &BTreeMap<i16, T>,
    wanted: Option<i16>,
    most: impl Fn(&T) -> u128,
    gathering: &mut Gathering,
) -> Result<i16, String> {
    let listed = |devices: &mut dyn Iterator<Item = &i16>| {
        let numbers: Vec<String> = devices.map(i16::to_string).collect();
        numbers.join(", ")
    };
    let absent = |device| {
        format!(
            "the {what} tells of no device {device}: there is {}",
            listed(&mut devices.keys())
        )
    };
    let chosen = match wanted {
        Some(device) if !devices.contains_key(&device) => return Err(absent(device)),
        Some(device) => device,
        None => devices
            .iter()
            .max_by_key(|(_, value)| most(value))
            .map_or(0, |(&device, _)| device),
    };
    if devices.len() > 1 {
        gathering.notes.push(format!(
            "this is device {chosen} alone; the {what} also tells of {}: choose with --device",
            listed(&mut devices.keys().filter(|&&other| other != chosen))
        ));
    }
    Ok(chosen)
}

fn journal(path: &Path, device: Option<i16>, gathering: &mut Gathering) -> Result<Source, String> {
    let journal = Journal::open(path).map_err(|problem| {
        // It names the file, and so does what it becomes a part of.
        let problem = problem.to_string();
        let of_file = format!("{}: ", path.display());
        problem.strip_prefix(&of_file).unwrap_or(&problem).to_owned()
    })?;
    let mut devices: BTreeMap<i16, Vec<Event>> = BTreeMap::new();
    for record in journal.records() {
        let record = record.map_err(|problem| problem.to_string())?;
        if let Event::Alloc(allocation) | Event::Free { allocation, .. } = record.event
            && allocation.class == Class::Linear.into()
        {
            devices.entry(record.device).or_default().push(record.event);
        }
    }
    let asked = |events: &Vec<Event>| -> u128 {
        let requested = events.iter().map(|event| match event {
            Event::Alloc(allocation) => u128::from(allocation.requested),
            _ => 0,
        });
        requested.sum()
    };
    let events = match devices.is_empty() {
        true => Vec::new(),
        false => {
            let chosen = choose_device("journal", &devices, device, asked, gathering)?;
            devices.remove(&chosen).unwrap_or_default()
        }
    };
    if journal.lost() > 0 {
        let lost = journal.lost();
        gathering
            .notes
            .push(format!("{lost} events were lost: figures are of those that are left"));
    }
    // 255 stands for several streams.
    let stream = |number: u8| Some(u64::from(number)).filter(|number| (1..255).contains(number));
    for event in events {
        match event {
            Event::Alloc(block) => gathering.allocate(block.address, block.requested, stream(block.stream)),
            Event::Free { allocation, .. } => gathering.free(allocation.address, stream(allocation.stream)),
            _ => {}
        }
    }
    Ok(Source::Journal {
        strategy: journal.header().strategy.clone(),
        environment: journal.header().environment.clone(),
    })
}

const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// What is wrong with a log, and what to do about it.
enum Unreadable {
    /// It ends before it is complete, as the log of a job that was killed may.
    Cut(String),
    Wrong(String),
}

fn unreadable(line: u64, error: &csv::Error) -> Unreadable {
    match error.kind() {
        csv::ErrorKind::Io(problem) if problem.kind() == std::io::ErrorKind::UnexpectedEof => {
            Unreadable::Cut(format!("line {line}: the compressed file is cut short: copy it again"))
        }
        csv::ErrorKind::Io(problem) => {
            Unreadable::Wrong(format!("line {line}: cannot be read: {problem}: copy the file again"))
        }
        csv::ErrorKind::Utf8 { .. } => Unreadable::Wrong(format!(
            "line {line}: is no text: give a CSV log, its columns {COLUMNS}"
        )),
        _ => Unreadable::Wrong(format!("line {line}: {error}")),
    }
}

/// Remembers the last byte: a log that was written to its end ends with a line's end.
struct Remembering<R> {
    source: R,
    last: u8,
}

impl<R: Read> Read for Remembering<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.last = buffer[..count].last().copied().unwrap_or(self.last);
        Ok(count)
    }
}

/// Plays what there is of a log that ends too early, with a note.
fn comma_separated(source: impl Read, gathering: &mut Gathering) -> Result<(), String> {
    let source = Remembering { source, last: b'\n' };
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(BufReader::new(source));
    match rows(&mut reader, gathering) {
        Err(Unreadable::Cut(problem)) if !gathering.requests.is_empty() => {
            gathering.notes.push(format!("{problem}; what comes before is played"));
            Ok(())
        }
        Err(Unreadable::Cut(problem) | Unreadable::Wrong(problem)) => Err(problem),
        Ok(()) => Ok(()),
    }
}

fn rows(
    reader: &mut csv::Reader<BufReader<Remembering<impl Read>>>,
    gathering: &mut Gathering,
) -> Result<(), Unreadable> {
    let header = reader.headers().map_err(|error| unreadable(1, &error))?.clone();
    if header.is_empty() {
        return Err(Unreadable::Wrong(format!("is empty: expected a first line {COLUMNS}")));
    }
    let column = |name: &str| {
        let missing = || Unreadable::Wrong(format!("line 1: has no column {name}: expected a first line {COLUMNS}"));
        header.iter().position(|field| field.trim() == name).ok_or_else(missing)
    };
    let columns = Columns {
        action: column("Action")?,
        pointer: column("Pointer")?,
        size: column("Size")?,
        stream: column("Stream")?,
    };
    let mut row = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        if !reader.read_record(&mut row).map_err(|error| unreadable(line, &error))? {
            return Ok(());
        }
        if let Err(problem) = columns.play(&row, gathering) {
            let problem = format!("line {}: {problem}", row.position().map_or(line, csv::Position::line));
            let is_last = matches!(reader.read_record(&mut row), Ok(false));
            return Err(match is_last && reader.get_ref().get_ref().last != b'\n' {
                true => Unreadable::Cut(problem),
                false => Unreadable::Wrong(problem),
            });
        }
    }
}

/// Where a log has what.
struct Columns {
    action: usize,
    pointer: usize,
    size: usize,
    stream: usize,
}

impl Columns {
    fn play(&self, row: &csv::StringRecord, gathering: &mut Gathering) -> Result<(), String> {
        let field = |index: usize, name: &str| {
            let missing = || format!("no {name}: the row is cut short, expected {COLUMNS}");
            row.get(index).map(str::trim).ok_or_else(missing)
        };
        let number = |index: usize, name: &str| {
            let text = field(index, name)?;
            let parsed = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => text.parse(),
            };
            parsed.map_err(|_| {
                format!("{name} {text:?} is no number: expected a whole one, 0 or more, or 0x and hexadecimal")
            })
        };
        match field(self.action, "Action")? {
            // A null pointer, as printf writes it: no memory.
            "allocate" | "free" if field(self.pointer, "Pointer")? == "(nil)" => {}
            "allocate" => gathering.allocate(
                number(self.pointer, "Pointer")?,
                number(self.size, "Size")?,
                Some(number(self.stream, "Stream")?),
            ),
            "free" => gathering.free_used_alone(number(self.pointer, "Pointer")?),
            // RMM logs failed allocations as well; they asked for memory that was never live.
            "allocate failure" => {}
            other => return Err(format!("action {other:?} is neither allocate nor free")),
        }
        Ok(())
    }
}
