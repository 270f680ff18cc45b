//! Parquet: one file with the events, and beside it two with the stacks and their frames, if there are any. The files
//! are written in groups of rows, so a long journal takes no more memory than a short one.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use base::cuda::HOST_DEVICE;
use journal::format::{Frame, Record};
use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnDescriptor;

use super::exported_process::Process;
use super::row::Row;
use crate::analysis::each_once::EachOnce;
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

pub enum Value {
    /// Has no such thing.
    Missing,
    /// Parquet stores unsigned numbers in the bits of signed ones, and so does this.
    Number(i64),
    Text(ByteArray),
}

macro_rules! numbers {
    ($($type:ty)*) => { $(
        impl From<$type> for Value {
            fn from(number: $type) -> Self {
                Value::Number(number as i64)
            }
        }
    )* };
}

numbers! { u64 u32 u8 i32 i16 bool }

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text.into_bytes().into())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Missing, Into::into)
    }
}

/// The values of a column that are not yet written: numbers or texts.
struct Column {
    numbers: Vec<i64>,
    texts: Vec<ByteArray>,
    /// For each row, whether it has a value (1) or none (0).
    levels: Vec<i16>,
    is_optional: bool,
}

impl Column {
    fn add(&mut self, value: Value) {
        self.levels.push(i16::from(!matches!(value, Value::Missing)));
        match value {
            Value::Missing => {}
            Value::Number(number) => self.numbers.push(number),
            Value::Text(text) => self.texts.push(text),
        }
    }

    fn write(&mut self, writer: &mut ColumnWriter) -> Result<(), ParquetError> {
        let levels = self.is_optional.then_some(&*self.levels);
        let numbers = self.numbers.iter();
        match writer {
            ColumnWriter::BoolColumnWriter(writer) => {
                let flags: Vec<bool> = numbers.map(|&number| number != 0).collect();
                writer.write_batch(&flags, levels, None)
            }
            ColumnWriter::Int32ColumnWriter(writer) => {
                let short: Vec<i32> = numbers.map(|&number| number as i32).collect();
                writer.write_batch(&short, levels, None)
            }
            ColumnWriter::Int64ColumnWriter(writer) => writer.write_batch(&self.numbers, levels, None),
            ColumnWriter::ByteArrayColumnWriter(writer) => writer.write_batch(&self.texts, levels, None),
            _ => Err(ParquetError::General("a column of an unknown type".to_owned())),
        }?;
        self.numbers.clear();
        self.texts.clear();
        self.levels.clear();
        Ok(())
    }
}

pub struct Table<W: Write + Send> {
    file: SerializedFileWriter<W>,
    columns: Vec<Column>,
    /// Rows that are not yet written.
    rows: usize,
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
        let column = |description: &Arc<ColumnDescriptor>| Column {
            numbers: Vec::new(),
            texts: Vec::new(),
            levels: Vec::new(),
            is_optional: description.max_def_level() > 0,
        };
        Ok(Table {
            columns: file.schema_descr().columns().iter().map(column).collect(),
            file,
            rows: 0,
        })
    }

    /// Adds a row, whose values are in the order of the schema.
    pub fn add(&mut self, row: impl IntoIterator<Item = Value>) -> io::Result<()> {
        self.columns
            .iter_mut()
            .zip(row)
            .for_each(|(column, value)| column.add(value));
        self.rows += 1;
        if self.rows == GROUP_ROWS {
            self.write().map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the rows so far as a group.
    fn write(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for column in &mut self.columns {
            if let Some(mut writer) = group.next_column()? {
                column.write(writer.untyped())?;
                writer.close()?;
            }
        }
        self.rows = 0;
        group.close().map(drop)
    }

    pub fn close(mut self) -> io::Result<()> {
        if self.rows > 0 {
            self.write().map_err(failed)?;
        }
        self.file.close().map(drop).map_err(failed)
    }
}

/// The values of a row of the table of events, in the order of its columns.
fn values(process: &Process, record: &Record, stack: Option<u64>) -> [Value; 20] {
    let row = Row::new(process, record);
    [
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
    stacks: StackTables,
}

impl<W: Write + Send> Writer<W> {
    pub fn new(out: W) -> io::Result<Writer<W>> {
        Ok(Writer {
            table: Table::new(out, EVENTS, VERSION)?,
            stacks: StackTables::default(),
        })
    }

    /// The events that follow are of this process.
    pub fn process(&mut self) {
        self.stacks.known.clear();
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        let stack = self.stacks.number(process, record.stack);
        self.table.add(values(process, record, stack))
    }

    /// Completes the file of events. Returns the stacks that they name.
    pub fn finish(self) -> io::Result<StackTables> {
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
    frames: EachOnce<Frame>,
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
        let numbers = frames.iter().map(|frame| self.frames.place(frame.clone()) as u64 + 1);
        self.stacks.push(numbers.collect());
        let number = self.stacks.len() as u64;
        self.known.insert(stack, number);
        Some(number)
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// One row for each frame of each stack; depth 0 is the innermost.
    pub fn write_stacks(&self, out: impl Write + Send) -> io::Result<()> {
        let mut table = Table::new(out, STACKS, VERSION)?;
        for (stack, frames) in (1u64..).zip(&self.stacks) {
            for (depth, &frame) in (0i32..).zip(frames) {
                table.add([stack.into(), depth.into(), frame.into()])?;
            }
        }
        table.close()
    }

    pub fn write_frames(&self, out: impl Write + Send) -> io::Result<()> {
        let mut table = Table::new(out, FRAMES, VERSION)?;
        for (number, frame) in (1u64..).zip(&self.frames.list) {
            let (file, function) = (&*frame.file, &*frame.function);
            table.add([number.into(), file.into(), frame.line.into(), function.into()])?;
        }
        table.close()
    }
}
