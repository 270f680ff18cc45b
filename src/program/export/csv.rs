//! The requests of a process for device memory as the log of RMM's logging adaptor, so that `vramshim replay` and RMM's own
//! replay benchmark read it. More columns follow those of RMM. Missing values are empty.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};

use base::api::Class;
use base::text::printable;
use journal::format::{Event, Record};

use super::exported_process::Process;
use super::row::Row;
use crate::analysis::names::api_name;

const COLUMNS: &str = "Thread,Time,Action,Pointer,Size,Stream,Process,Device,Api,Class,Allocated,Reserved,Result,Note,\
                       UnixNs,Place";

pub struct Writer<'w> {
    rows: csv::Writer<&'w mut dyn Write>,
    /// The row that is written, and the text of its last cell.
    row: csv::StringRecord,
    cell: String,
    /// Rows that were written.
    pub count: u64,
    /// RMM's readers know no devices.
    pub devices: BTreeSet<i16>,
}

/// The texts of a job in a cell. A spreadsheet takes a cell that begins with one of these characters for a formula, which
/// may send data away or start programs (OWASP, "CSV Injection"). An apostrophe before it makes it text. A text that begins
/// with an apostrophe gets one more, so that a reader who takes one away has the text itself. RMM's readers take each line
/// feed for the end of a row, so no control character stays.
fn foreign(text: &str) -> String {
    const FORMULA: [char; 9] = ['=', '+', '-', '@', '＝', '＋', '－', '＠', '\''];
    let text = printable(text, usize::MAX);
    if text.trim_start().starts_with(FORMULA) {
        format!("'{text}")
    } else {
        text
    }
}

fn known(value: &Option<impl Display>) -> &dyn Display {
    match value {
        Some(value) => value,
        None => &"",
    }
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write) -> io::Result<Writer<'w>> {
        let mut rows = csv::Writer::from_writer(out);
        rows.write_record(COLUMNS.split(','))?;
        Ok(Writer {
            rows,
            row: csv::StringRecord::new(),
            cell: String::new(),
            count: 0,
            devices: BTreeSet::new(),
        })
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        let class = match record.event {
            Event::Alloc(one) | Event::Free { allocation: one, .. } => one.class,
            Event::AllocFailed { class, .. } => class,
            _ => return Ok(()),
        };
        if !class.known().is_some_and(Class::is_device_memory) {
            return Ok(());
        }
        let row = Row::new(process, record);
        let action = match row.event {
            "alloc" => "allocate",
            "alloc_failed" => "allocate failure",
            event => event,
        };
        self.count += 1;
        self.devices.insert(record.device);
        let unix_ns = process.unix_ns(record.time_ns);
        let of_day_us = unix_ns / 1000 % 86_400_000_000;
        let (seconds, us) = (of_day_us / 1_000_000, of_day_us % 1_000_000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let place = process.frames(record.stack).first().map(|frame| {
            let (file, line, function) = (&frame.file, frame.line, &frame.function);
            foreign(&format!("{file}:{line}:{function}"))
        });
        let cells: [&dyn Display; 16] = [
            &record.tid,
            &format_args!("{hours:02}:{minutes:02}:{seconds:02}.{us:06}"),
            &action,
            &format_args!("{:#x}", row.address.unwrap_or(0)),
            known(&row.requested),
            &row.stream.unwrap_or(0),
            &process.journal.header().pid,
            &record.device,
            &api_name(record.api.number()),
            known(&row.class),
            known(&row.allocated),
            known(&row.reserved),
            known(&row.result),
            known(&row.note),
            &unix_ns,
            known(&place),
        ];
        self.row.clear();
        for cell in cells {
            self.cell.clear();
            write!(self.cell, "{cell}").map_err(io::Error::other)?;
            self.row.push_field(&self.cell);
        }
        // Much faster than cell by cell.
        self.rows.write_byte_record(self.row.as_byte_record())?;
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
    fn no_text_of_a_job_is_a_formula_or_ends_a_row() {
        for text in [
            "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "'=1", "''",
        ] {
            let cell = foreign(text);
            assert!(cell.starts_with('\'') && !cell.contains(['\t', '\r', '\n']), "{cell:?}");
        }
        for text in ["'=1", "''", "=1+1", "a=1", "", "train.py:7:step"] {
            let cell = foreign(text);
            assert_eq!(cell.strip_prefix('\'').unwrap_or(&cell), text);
        }
    }
}
