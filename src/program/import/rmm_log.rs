//! Reads the CSV log of RMM's logging adaptor (`Thread,Time,Action,Pointer,Size,Stream`), row by row.

use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::source;

const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";
/// No row is longer. A longer line would take memory without end.
const LONGEST_LINE_BYTES: usize = 64 << 10;

/// One row of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Nanoseconds since the beginning of the first day; `None` if the log has no times.
    pub at_ns: Option<u64>,
    /// 0 if the log does not say it.
    pub thread: u32,
    pub action: Action,
}

/// Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allocate { pointer: u64, size: u64, stream: u64 },
    Free { pointer: u64, stream: Option<u64> },
    Failure { size: u64, stream: Option<u64> },
}

/// How a log ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Whole,
    /// In the middle of a row, as it does if the job was killed: where, and what to do.
    Cut(String),
}

/// Why a log cannot be read, and what to do about it.
enum Unreadable {
    Cut(String),
    Wrong(String),
}

fn unreadable(line: u64, error: &csv::Error) -> Unreadable {
    match error.kind() {
        csv::ErrorKind::Io(problem) if problem.kind() == io::ErrorKind::UnexpectedEof => {
            Unreadable::Cut(format!("line {line}: the compressed file is cut short: copy it again"))
        }
        csv::ErrorKind::Io(problem) if problem.kind() == io::ErrorKind::FileTooLarge => {
            Unreadable::Wrong(format!("line {problem}: give a CSV log, its columns {COLUMNS}"))
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

/// A reader that remembers the last byte, which is the end of a line if the log is complete, and that fails at a line
/// that is too long.
struct LineReader<R> {
    source: R,
    last: u8,
    /// Whether the reader was asked for more than there is.
    ended: bool,
    line: u64,
    length: usize,
}

impl<R: Read> Read for LineReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.ended |= count == 0 && !buffer.is_empty();
        let bytes = &buffer[..count];
        self.last = bytes.last().copied().unwrap_or(self.last);
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.length += line.len();
            if self.length > LONGEST_LINE_BYTES {
                let told = format!("{}: is longer than {LONGEST_LINE_BYTES} bytes", self.line);
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, told));
            }
            if line.ends_with(b"\n") {
                (self.line, self.length) = (self.line + 1, 0);
            }
        }
        Ok(count)
    }
}

/// Reads a log, plain or gzipped. `each` gets every row, `progress` the bytes of the file read since its last call.
pub fn read(path: &Path, gzipped: bool, each: &mut dyn FnMut(Row)) -> Result<End, String> {
    let file = source::open(path)?;
    let source: Box<dyn Read> = match gzipped {
        true => Box::new(MultiGzDecoder::new(file)),
        false => Box::new(file),
    };
    let source = LineReader {
        source,
        last: b'\n',
        ended: false,
        line: 1,
        length: 0,
    };
    // RMM quotes nothing; a quotation mark must not join lines. Other programs that write the log again quote fields.
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .quoting(false)
        .from_reader(BufReader::new(source));
    match rows(&mut reader, each) {
        Ok(()) => Ok(End::Whole),
        Err(Unreadable::Cut(problem)) => Ok(End::Cut(problem)),
        Err(Unreadable::Wrong(problem)) => Err(problem),
    }
}

fn rows(
    reader: &mut csv::Reader<BufReader<LineReader<impl Read>>>,
    each: &mut dyn FnMut(Row),
) -> Result<(), Unreadable> {
    let header = reader.headers().map_err(|error| unreadable(1, &error))?.clone();
    if header.is_empty() {
        return Err(Unreadable::Wrong(format!("is empty: expected a first line {COLUMNS}")));
    }
    let place = |name: &str| header.iter().position(|field| bare(field) == name);
    let column = |name: &str| {
        let missing = || Unreadable::Wrong(format!("line 1: has no column {name}: expected a first line {COLUMNS}"));
        place(name).ok_or_else(missing)
    };
    let columns = Columns {
        action: column("Action")?,
        pointer: column("Pointer")?,
        size: column("Size")?,
        stream: column("Stream")?,
        // A log without times can be played, too.
        time: place("Time"),
        thread: place("Thread"),
    };
    let mut clock = Clock::default();
    let mut live = Sizes::new();
    let mut row = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        if !reader.read_record(&mut row).map_err(|error| unreadable(line, &error))? {
            return Ok(());
        }
        let at_ns = columns.time.and_then(|index| clock.read(bare(row.get(index)?)));
        let thread = columns.thread.and_then(|index| bare(row.get(index)?).parse().ok());
        match columns.action(&row) {
            Ok(None) => {}
            Ok(Some(action)) => {
                let lines = reader.get_ref().get_ref();
                let has_end = !lines.ended || lines.last == b'\n';
                if !has_end && let Some(what) = columns.cut(&row, header.len(), action, &live) {
                    return Err(Unreadable::Cut(format!("line {line}: {what}: the row is cut short")));
                }
                match action {
                    Action::Allocate { pointer, size, .. } => drop(live.insert(pointer, size)),
                    Action::Free { pointer, .. } => drop(live.remove(&pointer)),
                    Action::Failure { .. } => {}
                }
                each(Row {
                    at_ns,
                    thread: thread.unwrap_or(0),
                    action,
                });
            }
            Err(problem) => {
                let problem = format!("line {}: {problem}", row.position().map_or(line, csv::Position::line));
                let is_last = matches!(reader.read_record(&mut row), Ok(false));
                return Err(match is_last && reader.get_ref().get_ref().last != b'\n' {
                    true => Unreadable::Cut(problem),
                    false => Unreadable::Wrong(problem),
                });
            }
        }
    }
}

/// A field without blanks and quotation marks around it.
fn bare(field: &str) -> &str {
    let field = field.trim();
    let quoted = field.strip_prefix('"').and_then(|field| field.strip_suffix('"'));
    quoted.unwrap_or(field)
}

/// The positions of the columns.
struct Columns {
    action: usize,
    pointer: usize,
    size: usize,
    stream: usize,
    time: Option<usize>,
    thread: Option<usize>,
}

/// Reads times of the day, and counts the days.
#[derive(Default)]
struct Clock {
    last_ns: u64,
    days: u64,
}

impl Clock {
    /// Nanoseconds since the beginning of the first day. RMM writes `HH:MM:SS.ffffff`, older versions
    /// `HH:MM:SS:ffffff`. `None` if the text is no time of a day.
    fn read(&mut self, text: &str) -> Option<u64> {
        const DAY_NS: u64 = 86_400_000_000_000;
        let mut fields = text.trim().split([':', '.']);
        let mut number = || fields.next()?.parse::<u64>().ok();
        let seconds = (number()?.checked_mul(3600)?)
            .checked_add(number()?.checked_mul(60)?)?
            .checked_add(number()?)?;
        let fraction = fields.next().unwrap_or_default();
        let fraction_ns: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
        let of_day_ns = seconds.checked_mul(1_000_000_000)?.checked_add(fraction_ns)?;
        // A day with a leap second is one second longer.
        if of_day_ns >= DAY_NS + 1_000_000_000 {
            return None;
        }
        // A time that is earlier by more than half a day is of the next day.
        if of_day_ns + DAY_NS / 2 < self.last_ns {
            self.days += 1;
        }
        self.last_ns = of_day_ns;
        of_day_ns.checked_add(self.days.checked_mul(DAY_NS)?)
    }
}

/// The sizes of live allocations, by pointer.
type Sizes = HashMap<u64, u64>;

impl Columns {
    /// What shows that the last row of a log, which no line feed ends, was cut; `None` if it may be whole.
    fn cut(&self, row: &csv::StringRecord, columns: usize, action: Action, live: &Sizes) -> Option<String> {
        if row.len() < columns {
            return Some(format!("{} of {columns} columns", row.len()));
        }
        let Action::Free { pointer, .. } = action else {
            return None;
        };
        let freed: u64 = row.get(self.size).and_then(|size| bare(size).parse().ok())?;
        let allocated = live.get(&pointer).filter(|&&size| size != freed)?;
        Some(format!("a free of {freed} bytes where {allocated} were allocated"))
    }

    /// What a row says that happened; `None` if nothing did.
    fn action(&self, row: &csv::StringRecord) -> Result<Option<Action>, String> {
        let field = |index: usize, name: &str| {
            let missing = || format!("no {name}: the row is cut short, expected {COLUMNS}");
            row.get(index).map(bare).ok_or_else(missing)
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
        let stream = || number(self.stream, "Stream");
        Ok(Some(match field(self.action, "Action")? {
            // printf writes a null pointer as "(nil)": such a row has no memory.
            "allocate" | "free" if field(self.pointer, "Pointer")? == "(nil)" => return Ok(None),
            "allocate" => Action::Allocate {
                pointer: number(self.pointer, "Pointer")?,
                size: number(self.size, "Size")?,
                stream: stream()?,
            },
            "free" => Action::Free {
                pointer: number(self.pointer, "Pointer")?,
                stream: stream().ok(),
            },
            "allocate failure" => Action::Failure {
                size: number(self.size, "Size")?,
                stream: stream().ok(),
            },
            other => return Err(format!("action {other:?} is neither allocate nor free")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn a_clock_reads_times_of_a_day_and_nothing_else() {
        let mut clock = Clock::default();
        assert_eq!(clock.read("23:59:60.5"), Some(86_400_500_000_000));
        // The next day.
        assert_eq!(clock.read("00:00:01:000002"), Some(86_401_000_002_000));
        for text in [
            "",
            "12",
            "1:2",
            "24:00:01.1",
            "0:0:18446744073",
            "99999999999999999:0:0",
            "0:-1:0",
            "a:b:c",
        ] {
            assert_eq!(clock.read(text), None, "{text:?}");
        }
    }
}
