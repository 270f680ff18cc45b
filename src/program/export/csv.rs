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
            text(row.note),
            text(row.device_total),
            text(row.device_free),
            text(row.process_bytes),
            hexadecimal(row.other),
            text(place),
        ])?;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.rows.flush()
    }
}
