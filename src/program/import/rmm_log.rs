//! Reads the CSV log of RMM's logging adaptor (`Thread,Time,Action,Pointer,Size,Stream`), row by row.

use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::plain_file::{self, MOST_COMPRESSED, Unreadable};

pub const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";
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
#[derive(Debug)]
pub enum End {
    Whole,
    /// In the middle of a row, as it does if the job was killed: where, and what to do.
    Cut(LogError),
}

/// Why a log cannot be read, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
    #[error("is empty: expected a first line {COLUMNS}")]
    Empty,
    #[error("line {0}: {1}")]
    Line(u64, RowError),
}

#[derive(Debug, thiserror::Error)]
pub enum RowError {
    #[error("the compressed file is cut short: copy it again")]
    Gzip,
    #[error(
        "the compressed file stands for more than {MOST_COMPRESSED} times its own bytes, so it is not read on: if it is \
         right, unpack it and give the log itself"
    )]
    Expands,
    #[error("is longer than {LONGEST_LINE_BYTES} bytes: give a CSV log, its columns {COLUMNS}")]
    TooLong,
    #[error("cannot be read: {0}: copy the file again")]
    Io(String),
    #[error("is no text: give a CSV log, its columns {COLUMNS}")]
    NoText,
    #[error("{0}")]
    Csv(String),
    #[error("has no column {0}: expected a first line {COLUMNS}")]
    NoColumn(&'static str),
    #[error("no {0}: the row is cut short, expected {COLUMNS}")]
    Missing(&'static str),
    #[error("{0} {1:?} is no number: expected a whole one, 0 or more, or 0x and hexadecimal")]
    NoNumber(&'static str, String),
    #[error("action {0:?} is neither allocate nor free")]
    Action(String),
    #[error("{0} of {1} columns: the row is cut short")]
    Columns(usize, usize),
}

impl LogError {
    fn in_csv(line: u64, lines: &LineReader<impl Read>, error: &csv::Error) -> LogError {
        let (line, problem) = match error.kind() {
            csv::ErrorKind::Io(problem) if problem.kind() == io::ErrorKind::UnexpectedEof => (line, RowError::Gzip),
            csv::ErrorKind::Io(problem) if problem.kind() == io::ErrorKind::FileTooLarge => {
                (lines.line, RowError::TooLong)
            }
            csv::ErrorKind::Io(problem) if problem.kind() == io::ErrorKind::QuotaExceeded => (line, RowError::Expands),
            csv::ErrorKind::Io(problem) => (line, RowError::Io(problem.to_string())),
            csv::ErrorKind::Utf8 { .. } => (line, RowError::NoText),
            _ => (line, RowError::Csv(error.to_string())),
        };
        LogError::Line(line, problem)
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
    /// Bytes that may still come.
    room: u64,
}
impl<R: Read> Read for LineReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.ended |= count == 0 && !buffer.is_empty();
        let bytes = &buffer[..count];
        self.room = (self.room.checked_sub(count as u64)).ok_or(io::ErrorKind::QuotaExceeded)?;
        self.last = bytes.last().copied().unwrap_or(self.last);
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.length += line.len();
            if self.length > LONGEST_LINE_BYTES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            if line.ends_with(b"\n") {
                (self.line, self.length) = (self.line + 1, 0);
            }
        }
        Ok(count)
    }
}

/// Reads a log, plain or gzipped. `each` gets every row.
pub fn read(path: &Path, gzipped: bool, each: &mut dyn FnMut(Row)) -> Result<End, LogError> {
    let file = plain_file::open(path)?;
    let (source, room): (Box<dyn Read>, u64) = if gzipped {
        let room = plain_file::most_expanded(file.limit());
        (Box::new(MultiGzDecoder::new(file)), room)
    } else {
        (Box::new(file), u64::MAX)
    };
    let source = LineReader {
        source,
        last: b'\n',
        ended: false,
        line: 1,
        length: 0,
        room,
    };
    // RMM quotes nothing; a quotation mark must not join lines. Other programs that write the log again quote fields.
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .quoting(false)
        .from_reader(BufReader::new(source));
    rows(&mut reader, each)
}

fn rows(
    reader: &mut csv::Reader<BufReader<LineReader<impl Read>>>,
    each: &mut dyn FnMut(Row),
) -> Result<End, LogError> {
    let mut row = csv::StringRecord::new();
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(error) => return ended(LogError::in_csv(1, reader.get_ref().get_ref(), &error)),
    };
    if header.is_empty() {
        return Err(LogError::Empty);
    }
    let place = |name: &str| header.iter().position(|field| bare(field) == name);
    let column = |name: &'static str| place(name).ok_or(LogError::Line(1, RowError::NoColumn(name)));
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
    loop {
        let line = reader.position().line();
        match reader.read_record(&mut row) {
            Ok(true) => {}
            Ok(false) => return Ok(End::Whole),
            Err(error) => return ended(LogError::in_csv(line, reader.get_ref().get_ref(), &error)),
        }
        let at_ns = columns.time.and_then(|index| clock.read(bare(row.get(index)?)));
        let thread = columns.thread.and_then(|index| bare(row.get(index)?).parse().ok());
        let action = match columns.action(&row) {
            Ok(None) => continue,
            Ok(Some(action)) => action,
            Err(problem) => {
                let problem = LogError::Line(row.position().map_or(line, csv::Position::line), problem);
                let is_last = matches!(reader.read_record(&mut row), Ok(false));
                if is_last && reader.get_ref().get_ref().last != b'\n' {
                    return Ok(End::Cut(problem));
                }
                return Err(problem);
            }
        };
        let lines = reader.get_ref().get_ref();
        let has_end = !lines.ended || lines.last == b'\n';
        if !has_end && row.len() < header.len() {
            return Ok(End::Cut(LogError::Line(
                line,
                RowError::Columns(row.len(), header.len()),
            )));
        }
        let thread = thread.unwrap_or(0);
        each(Row { at_ns, thread, action });
    }
}

/// A compressed file that is cut short has the rows before the cut.
fn ended(error: LogError) -> Result<End, LogError> {
    match error {
        LogError::Line(_, RowError::Gzip) => Ok(End::Cut(error)),
        error => Err(error),
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

impl Columns {
    /// What a row says that happened; `None` if nothing did.
    fn action(&self, row: &csv::StringRecord) -> Result<Option<Action>, RowError> {
        let field = |index: usize, name| row.get(index).map(bare).ok_or(RowError::Missing(name));
        let number = |index: usize, name| {
            let text = field(index, name)?;
            let parsed = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => text.parse(),
            };
            parsed.map_err(|_| RowError::NoNumber(name, text.to_owned()))
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
            other => return Err(RowError::Action(other.to_owned())),
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
