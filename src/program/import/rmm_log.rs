//! Reads the CSV log of RMM's logging adaptor (`Thread,Time,Action,Pointer,Size,Stream`), row by row.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::kind::{GZIP, is_named_gzip};
use super::plain_file::{self, MOST_COMPRESSED, Unreadable, Wrong};

pub const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";
const GIVE: &str = "give a CSV log, its columns Thread,Time,Action,Pointer,Size,Stream";
/// No row is longer. A longer line would take memory without end.
const LONGEST_LINE_BYTES: u64 = 64 << 10;

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

#[derive(Debug)]
pub enum End {
    Whole,
    /// In the middle of a row, as it does if the job was killed: where, and what to do.
    Cut(Wrong),
}

/// Reads a log, plain or gzipped. `each` gets every row. RMM quotes nothing, and a quotation mark must not join lines; other
/// programs that write the log again quote fields.
pub fn read(path: &Path, each: &mut dyn FnMut(Row)) -> Result<End, Wrong> {
    let file = plain_file::open(path)?;
    // A byte beyond what may come tells that more follows.
    let most = plain_file::most_expanded(file.limit()).saturating_add(1);
    let mut file = BufReader::new(file);
    let begin = file.fill_buf().map_err(Unreadable::from)?;
    let (source, room): (Box<dyn Read>, u64) = if begin.starts_with(&GZIP) || is_named_gzip(path) {
        (Box::new(MultiGzDecoder::new(file)), most)
    } else {
        (Box::new(file), u64::MAX)
    };
    let mut source = BufReader::new(source.take(room));
    let (mut columns, mut clock, mut bytes) = (None, Clock::default(), Vec::new());
    for line in 1.. {
        let wrong = |problem: Wrong| format!("line {line}: {problem}");
        bytes.clear();
        match (&mut source).take(LONGEST_LINE_BYTES + 1).read_until(b'\n', &mut bytes) {
            Ok(length) if length as u64 > LONGEST_LINE_BYTES => {
                return Err(wrong(format!("is longer than {LONGEST_LINE_BYTES} bytes: {GIVE}")));
            }
            Ok(_) => {}
            // A compressed file that is cut short has the rows before the cut.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Ok(End::Cut(wrong(
                    "the compressed file is cut short: copy it again".to_owned(),
                )));
            }
            Err(error) => return Err(wrong(format!("cannot be read: {error}: copy the file again"))),
        }
        let is_last = !bytes.ends_with(b"\n");
        if is_last && source.get_ref().limit() == 0 {
            return Err(wrong(format!(
                "the compressed file stands for more than {MOST_COMPRESSED} times its own bytes, so it is not read on: if \
                 it is right, unpack it and give the log itself"
            )));
        }
        if bytes.is_empty() {
            break;
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong(format!("is no text: {GIVE}")))?;
        // Some programs begin UTF-8 with a mark.
        let text = text.trim_start_matches('\u{feff}').trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            continue;
        }
        let row: Vec<&str> = text.split(',').map(bare).collect();
        let Some(columns) = &columns else {
            columns = Some(Columns::named(&row).map_err(wrong)?);
            continue;
        };
        let at_ns = columns.time.and_then(|index| clock.read(row.get(index)?));
        let thread = columns.thread.and_then(|index| row.get(index)?.parse().ok());
        match columns.action(&row) {
            Ok(None) => {}
            Ok(Some(_)) if is_last && row.len() < columns.count => {
                let (has, of) = (row.len(), columns.count);
                return Ok(End::Cut(wrong(format!("{has} of {of} columns: the row is cut short"))));
            }
            Ok(Some(action)) => each(Row {
                at_ns,
                thread: thread.unwrap_or(0),
                action,
            }),
            Err(problem) if is_last => return Ok(End::Cut(wrong(problem))),
            Err(problem) => return Err(wrong(problem)),
        }
    }
    let empty = || format!("is empty: expected a first line {COLUMNS}");
    columns.map(|_| End::Whole).ok_or_else(empty)
}

/// A field without blanks and quotation marks around it.
fn bare(field: &str) -> &str {
    let field = field.trim();
    let quoted = field.strip_prefix('"').and_then(|field| field.strip_suffix('"'));
    quoted.unwrap_or(field)
}

struct Columns {
    count: usize,
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
    fn named(header: &[&str]) -> Result<Columns, Wrong> {
        let place = |name: &str| header.iter().position(|field| *field == name);
        let none = |name| format!("has no column {name}: expected a first line {COLUMNS}");
        let column = |name| place(name).ok_or_else(|| none(name));
        Ok(Columns {
            count: header.len(),
            action: column("Action")?,
            pointer: column("Pointer")?,
            size: column("Size")?,
            stream: column("Stream")?,
            // A log without times can be played, too.
            time: place("Time"),
            thread: place("Thread"),
        })
    }

    /// What a row says that happened; `None` if nothing did.
    fn action(&self, row: &[&str]) -> Result<Option<Action>, Wrong> {
        let field = |index: usize, name| {
            let missing = || format!("no {name}: the row is cut short, expected {COLUMNS}");
            row.get(index).copied().ok_or_else(missing)
        };
        let number = |index: usize, name| {
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
