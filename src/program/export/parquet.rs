//! Parquet: one file with the events, and beside it two with the stacks and their frames, if there are any. The files
//! are written in groups of rows, so a long journal takes no more memory than a short one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use base::cuda::HOST_DEVICE;
use journal::format::{Frame, Record};
use parquet::basic::Compression;
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::exported_process::Process;
use super::row::Row;
use crate::analysis::names::api_name;

/// Rows that are kept in memory and written together.
const GROUP_ROWS: usize = 1 << 16;

/// The version of the columns of events, stacks and frames, and of what they mean.
const VERSION: (&str, &str) = ("vramshim.schema_version", "1");

const EVENTS: &str = "message events {
    required int32 process (INTEGER(32, false));
    required int64 time_ns (INTEGER(64, true));
    required int64 unix_ns (TIMESTAMP(NANOS, true));
    required int32 thread (INTEGER(32, false));
    required binary event (STRING);
    required binary api (STRING);
    optional binary class (STRING);
    optional int32 device (INTEGER(16, true));
    optional int64 address (INTEGER(64, false));
    optional int64 requested (INTEGER(64, false));
    optional int64 allocated (INTEGER(64, false));
    optional int64 reserved (INTEGER(64, false));
    optional int32 stream (INTEGER(8, false));
    optional int32 result (INTEGER(32, true));
    optional binary note (STRING);
    optional int64 device_total (INTEGER(64, false));
    optional int64 device_free (INTEGER(64, false));
    optional int64 process_bytes (INTEGER(64, false));
    optional int64 other (INTEGER(64, false));
    optional int64 stack (INTEGER(64, false));
}";

const STACKS: &str = "message stacks {
    required int64 stack (INTEGER(64, false));
    required int32 depth (INTEGER(32, false));
    required int64 frame (INTEGER(64, false));
}";

const FRAMES: &str = "message frames {
    required int64 frame (INTEGER(64, false));
    required binary file (STRING);
    required int64 line (INTEGER(64, false));
    required binary function (STRING);
}";

fn failed(problem: ParquetError) -> io::Error {
    match problem {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

/// A value of a column.
pub enum Value<'t> {
    /// Has no such thing.
    Missing,
    /// Parquet stores unsigned numbers in the bits of signed ones, and so does this.
    Number(i64),
    Text(Cow<'t, str>),
}

impl Value<'_> {
    fn number(&self) -> Option<i64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Missing | Value::Text(_) => None,
        }
    }

    fn text(&self) -> Option<ByteArray> {
        match self {
            Value::Text(text) => Some(ByteArray::from(&**text)),
            Value::Missing | Value::Number(_) => None,
        }
    }
}

macro_rules! numbers {
    ($($type:ty)*) => { $(
        impl From<$type> for Value<'_> {
            fn from(number: $type) -> Self {
                Value::Number(number as i64)
            }
        }
    )* };
}

numbers! { u64 u32 u8 i32 i16 bool }

impl<'t> From<&'t str> for Value<'t> {
    fn from(text: &'t str) -> Self {
        Value::Text(text.into())
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::Text(text.into())
    }
}

impl<'t, T: Into<Value<'t>>> From<Option<T>> for Value<'t> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Missing, Into::into)
    }
}

/// A file of a table.
pub struct Table<W: Write + Send> {
    file: SerializedFileWriter<W>,
}

impl<W: Write + Send> Table<W> {
    pub fn new(out: W, schema: &str, (name, version): (&str, &str)) -> io::Result<Table<W>> {
        let schema = Arc::new(parse_message_type(schema).map_err(failed)?);
        let metadata = vec![KeyValue::new(name.to_owned(), version.to_owned())];
        let properties = WriterProperties::builder()
            .set_compression(Compression::LZ4_RAW)
            .set_key_value_metadata(Some(metadata))
            .build();
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(failed)?;
        Ok(Table { file })
    }

    /// Writes a group of rows. The values of a row are in the order of the schema.
    pub fn rows(&mut self, rows: &[Vec<Value>]) -> io::Result<()> {
        let mut write = || -> Result<(), ParquetError> {
            let mut group = self.file.next_row_group()?;
            let mut place = 0;
            while let Some(mut column) = group.next_column()? {
                let values = rows.iter().map(|row| &row[place]);
                let numbers = values.clone().map(Value::number);
                match column.untyped() {
                    ColumnWriter::Int64ColumnWriter(writer) => put(writer, numbers)?,
                    ColumnWriter::Int32ColumnWriter(writer) => put(writer, numbers.map(|one| Some(one? as i32)))?,
                    ColumnWriter::BoolColumnWriter(writer) => put(writer, numbers.map(|one| Some(one? != 0)))?,
                    ColumnWriter::ByteArrayColumnWriter(writer) => put(writer, values.map(Value::text))?,
                    _ => return Err(ParquetError::General("a column of an unknown type".to_owned())),
                }
                column.close()?;
                place += 1;
            }
            group.close().map(drop)
        };
        write().map_err(failed)
    }

    pub fn close(self) -> io::Result<()> {
        self.file.close().map(drop).map_err(failed)
    }
}

fn put<T: DataType>(
    writer: &mut ColumnWriterImpl<T>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let (mut present, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    let is_optional = writer.get_descriptor().max_def_level() > 0;
    writer
        .write_batch(&present, is_optional.then_some(&levels), None)
        .map(drop)
}

/// The values of a row of the table of events, in the order of its columns.
fn values(process: &Process, record: &Record, stack: Option<u64>) -> Vec<Value<'static>> {
    let row = Row::new(process, record);
    vec![
        process.journal.header().pid.into(),
        record.time_ns.into(),
        process.unix_ns(record.time_ns).into(),
        record.tid.into(),
        row.event.into(),
        api_name(record.api.number()).into(),
        row.class.into(),
        (record.device != HOST_DEVICE).then_some(record.device).into(),
        row.address.into(),
        row.requested.into(),
        row.allocated.into(),
        row.reserved.into(),
        row.stream.into(),
        row.result.into(),
        row.note.into(),
        row.device_total.into(),
        row.device_free.into(),
        row.process_bytes.into(),
        row.other.into(),
        stack.into(),
    ]
}

pub struct Writer<W: Write + Send> {
    table: Table<W>,
    rows: Vec<Vec<Value<'static>>>,
    stacks: StackTables,
}

impl<W: Write + Send> Writer<W> {
    pub fn new(out: W) -> io::Result<Writer<W>> {
        Ok(Writer {
            table: Table::new(out, EVENTS, VERSION)?,
            rows: Vec::new(),
            stacks: StackTables::default(),
        })
    }

    /// The events that follow are of this process.
    pub fn process(&mut self) {
        self.stacks.known.clear();
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        let stack = self.stacks.number(process, record.stack);
        self.rows.push(values(process, record, stack));
        if self.rows.len() == GROUP_ROWS {
            self.table.rows(&self.rows)?;
            self.rows.clear();
        }
        Ok(())
    }

    /// Completes the file of events. Returns the stacks that they name.
    pub fn finish(mut self) -> io::Result<StackTables> {
        if !self.rows.is_empty() {
            self.table.rows(&self.rows)?;
        }
        self.table.close()?;
        Ok(self.stacks)
    }
}

/// The stacks of all events, numbered from 1 over all processes, and their frames.
#[derive(Default)]
pub struct StackTables {
    /// The numbers of stacks of the present process, by their numbers there.
    known: HashMap<u32, u64>,
    stacks: Vec<Vec<u64>>,
    frames: Vec<Frame>,
    numbers: HashMap<Frame, u64>,
}

impl StackTables {
    fn number(&mut self, process: &Process, stack: u32) -> Option<u64> {
        if let Some(&number) = self.known.get(&stack) {
            return Some(number);
        }
        let frames = process.frames(stack);
        if frames.is_empty() {
            return None;
        }
        let mut numbers = Vec::with_capacity(frames.len());
        for frame in frames {
            let next = self.frames.len() as u64 + 1;
            let number = *self.numbers.entry(frame.clone()).or_insert(next);
            if number == next {
                self.frames.push(frame.clone());
            }
            numbers.push(number);
        }
        self.stacks.push(numbers);
        let number = self.stacks.len() as u64;
        self.known.insert(stack, number);
        Some(number)
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// One row for each frame of each stack; depth 0 is the innermost.
    pub fn write_stacks(&self, out: impl Write + Send) -> io::Result<()> {
        let numbered = (1u64..).zip(&self.stacks);
        let rows: Vec<Vec<Value>> = numbered
            .flat_map(|(stack, frames)| {
                let frames = (0i32..).zip(frames);
                frames.map(move |(depth, &frame)| vec![stack.into(), depth.into(), frame.into()])
            })
            .collect();
        write_table(out, STACKS, &rows)
    }

    pub fn write_frames(&self, out: impl Write + Send) -> io::Result<()> {
        let frames = (1u64..).zip(&self.frames);
        let row = |(number, frame): (u64, &Frame)| -> Vec<Value> {
            let (file, function) = (frame.file.to_string(), frame.function.to_string());
            vec![number.into(), file.into(), frame.line.into(), function.into()]
        };
        write_table(out, FRAMES, &frames.map(row).collect::<Vec<_>>())
    }
}

fn write_table(out: impl Write + Send, schema: &str, rows: &[Vec<Value>]) -> io::Result<()> {
    let mut table = Table::new(out, schema, VERSION)?;
    table.rows(rows)?;
    table.close()
}
