//! Reads the CSV log of RMM's logging adaptor (`Thread,Time,Action,Pointer,Size,Stream`).

use std::io::{BufReader, Read};

use super::gathering::{Gathering, LastUse, Way};

const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Why a log cannot be read, and what to do about it.
enum Unreadable {
    /// The log ends too early, as it does if the job was killed.
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

/// A reader that remembers the last byte, which is the end of a line if the log is complete.
struct LastByteReader<R> {
    source: R,
    last: u8,
}

impl<R: Read> Read for LastByteReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.last = buffer[..count].last().copied().unwrap_or(self.last);
        Ok(count)
    }
}

/// Collects the requests of a log. If the log was cut short, the complete lines are kept and a note says so.
pub(super) fn gather(source: impl Read, gathering: &mut Gathering) -> Result<(), String> {
    let source = LastByteReader { source, last: b'\n' };
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
    reader: &mut csv::Reader<BufReader<LastByteReader<impl Read>>>,
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
        // A log without times can be played, too.
        time: column("Time").ok(),
    };
    let mut clock = Clock::default();
    let mut row = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        if !reader.read_record(&mut row).map_err(|error| unreadable(line, &error))? {
            return Ok(());
        }
        if let Some(now_ns) = columns.time.and_then(|index| clock.read(row.get(index)?)) {
            gathering.at(now_ns);
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

/// The positions of the columns.
struct Columns {
    action: usize,
    pointer: usize,
    size: usize,
    stream: usize,
    time: Option<usize>,
}

/// Reads times of the day, and counts the days.
#[derive(Default)]
struct Clock {
    last_ns: u64,
    days: u64,
}

impl Clock {
    /// Nanoseconds since the beginning of the first day. RMM writes `HH:MM:SS.ffffff`, older versions
    /// `HH:MM:SS:ffffff`.
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
        // A time that is earlier by more than half a day is of the next day.
        if of_day_ns + DAY_NS / 2 < self.last_ns {
            self.days += 1;
        }
        self.last_ns = of_day_ns;
        of_day_ns.checked_add(self.days.checked_mul(DAY_NS)?)
    }
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
            // printf writes a null pointer as "(nil)": such a row has no memory.
            "allocate" | "free" if field(self.pointer, "Pointer")? == "(nil)" => {}
            "allocate" => gathering.allocate(
                number(self.pointer, "Pointer")?,
                number(self.size, "Size")?,
                Way::Tensor(Some(number(self.stream, "Stream")?)),
            ),
            "free" => {
                let pointer = number(self.pointer, "Pointer")?;
                match number(self.stream, "Stream") {
                    Ok(freed_on) => gathering.free(pointer, |way| match way {
                        Way::Tensor(Some(own)) if own != freed_on => LastUse::TwoStreams(own, freed_on),
                        way => way.used_alone(),
                    }),
                    Err(_) => gathering.free_used_alone(pointer),
                }
            }
            "allocate failure" => {
                let stream = number(self.stream, "Stream").ok();
                gathering.fail(number(self.size, "Size")?, Way::Tensor(stream));
            }
            other => return Err(format!("action {other:?} is neither allocate nor free")),
        }
        Ok(())
    }
}
