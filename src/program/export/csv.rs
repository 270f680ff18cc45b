//! One row for each event, with a first line of names. Missing values are empty, addresses are hexadecimal.

use std::io::{self, Write};

use journal::format::Record;

use super::row::Row;
use super::source::Process;

const COLUMNS: [&str; 20] = [
    "process",
    "time_ns",
    "unix_ns",
    "thread",
    "event",
    "api",
    "class",
    "device",
    "address",
    "requested",
    "allocated",
    "reserved",
    "stream",
    "result",
    "note",
    "device_total",
    "device_free",
    "process_bytes",
    "other",
    "place",
];

pub struct Writer<'w> {
    rows: csv::Writer<&'w mut dyn Write>,
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A text that comes from a job. A spreadsheet takes a cell that begins with one of these characters for a formula, which
/// may send data away or start programs (OWASP, "CSV Injection"). An apostrophe before it makes it text. A text that begins
/// with an apostrophe gets one more, so that a reader who takes one away has the text itself.
fn foreign(text: Option<String>) -> String {
    const FORMULA: [char; 12] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠', '\''];
    match text {
        Some(text) if text.starts_with(FORMULA) => format!("'{text}"),
        text => text.unwrap_or_default(),
    }
}

fn hexadecimal(value: Option<u64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:#x}"))
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write) -> io::Result<Writer<'w>> {
        let mut rows = csv::Writer::from_writer(out);
        rows.write_record(COLUMNS)?;
        Ok(Writer { rows })
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        let row = Row::of(process, record);
        let place = process.frames(record.stack).first().map(|frame| {
            let (file, line, function) = (&frame.file, frame.line, &frame.function);
            format!("{file}:{line}:{function}")
        });
        self.rows.write_record([
            row.process.to_string(),
            row.time_ns.to_string(),
            row.unix_ns.to_string(),
            row.thread.to_string(),
            row.event.to_owned(),
            row.api,
            text(row.class),
            text(row.device),
            hexadecimal(row.address),
            text(row.requested),
            text(row.allocated),
            text(row.reserved),
            text(row.stream),
            text(row.result),
            foreign(row.note),
            text(row.device_total),
            text(row.device_free),
            text(row.process_bytes),
            hexadecimal(row.other),
            foreign(place),
        ])?;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.rows.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::foreign;

    #[test]
    fn no_text_of_a_job_is_a_formula_and_each_can_be_had_again() {
        let texts = [
            "=1+1",
            "+1",
            "-1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            "\n=1",
            "＝1",
            "'=1",
            "''",
            "a=1",
            "",
            "train.py:7:step",
        ];
        for text in texts {
            let cell = foreign(Some(text.to_owned()));
            assert!(
                !cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝']),
                "{cell:?}"
            );
            assert_eq!(cell.strip_prefix('\'').unwrap_or(&cell), text);
        }
        assert_eq!(foreign(Some("step 7".to_owned())), "step 7");
        assert_eq!(foreign(None), "");
    }
}
