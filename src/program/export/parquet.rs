//! Parquet: one file with the events, and beside it two with the stacks and their frames, if there are any. The files
//! are written in groups of rows, so a long journal takes no more memory than a short one.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use journal::format::{Frame, Record};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::row::{Row, SCHEMA_VERSION};
use super::source::Process;
use crate::output::Output;

/// Rows that are kept in memory and written together.
const GROUP_ROWS: usize = 1 << 17;

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

/// The writer of Parquet may be moved to another thread, which is not done here.
pub struct SendOutput<'o>(pub &'o mut Output);

impl Write for SendOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A file of a table.
pub struct Table<W: Write + Send> {
    file: SerializedFileWriter<W>,
}

impl<W: Write + Send> Table<W> {
    pub fn new(out: W, schema: &str, about: &[(&str, String)]) -> io::Result<Table<W>> {
        let schema = Arc::new(parse_message_type(schema).map_err(failed)?);
        let metadata = about
            .iter()
            .map(|(name, value)| KeyValue::new((*name).to_owned(), value.clone()));
        let properties = WriterProperties::builder()
            .set_compression(Compression::LZ4_RAW)
            .set_key_value_metadata(Some(metadata.collect()))
            .build();
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(failed)?;
        Ok(Table { file })
    }

    pub fn group(&mut self, write: impl FnOnce(&mut Columns<'_, W>) -> Result<(), ParquetError>) -> io::Result<()> {
        let group = self.file.next_row_group().map_err(failed)?;
        let mut columns = Columns { group };
        write(&mut columns)
            .and_then(|()| columns.group.close().map(drop))
            .map_err(failed)
    }

    pub fn close(self) -> io::Result<()> {
        self.file.close().map(drop).map_err(failed)
    }
}

/// The columns of one group of rows, written in the order of the schema.
pub struct Columns<'a, W: Write + Send> {
    group: SerializedRowGroupWriter<'a, W>,
}

impl<W: Write + Send> Columns<'_, W> {
    fn put<T: DataType>(&mut self, values: &[T::T], levels: Option<&[i16]>) -> Result<(), ParquetError> {
        let missing = || ParquetError::General("too many columns".to_owned());
        let mut column = self.group.next_column()?.ok_or_else(missing)?;
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()
    }

    pub fn int32(&mut self, values: impl Iterator<Item = i32>) -> Result<(), ParquetError> {
        self.put::<Int32Type>(&values.collect::<Vec<_>>(), None)
    }

    /// No row.
    pub fn nothing(&mut self) -> Result<(), ParquetError> {
        while let Some(column) = self.group.next_column()? {
            column.close()?;
        }
        Ok(())
    }

    pub fn boolean(&mut self, values: impl Iterator<Item = bool>) -> Result<(), ParquetError> {
        self.put::<BoolType>(&values.collect::<Vec<_>>(), None)
    }

    pub fn int64(&mut self, values: impl Iterator<Item = u64>) -> Result<(), ParquetError> {
        // Parquet stores unsigned numbers in the bits of signed ones.
        let values: Vec<i64> = values.map(|value| value as i64).collect();
        self.put::<Int64Type>(&values, None)
    }

    pub fn text<'t>(&mut self, values: impl Iterator<Item = &'t str>) -> Result<(), ParquetError> {
        let values: Vec<ByteArray> = values.map(ByteArray::from).collect();
        self.put::<ByteArrayType>(&values, None)
    }

    pub fn optional<T: DataType>(&mut self, values: impl Iterator<Item = Option<T::T>>) -> Result<(), ParquetError> {
        let (mut present, mut levels) = (Vec::new(), Vec::new());
        for value in values {
            levels.push(i16::from(value.is_some()));
            present.extend(value);
        }
        self.put::<T>(&present, Some(&levels))
    }

    pub fn optional_int64(&mut self, values: impl Iterator<Item = Option<u64>>) -> Result<(), ParquetError> {
        self.optional::<Int64Type>(values.map(|value| value.map(|value| value as i64)))
    }

    pub fn optional_text(&mut self, values: impl Iterator<Item = Option<ByteArray>>) -> Result<(), ParquetError> {
        self.optional::<ByteArrayType>(values)
    }
}

pub struct Writer<W: Write + Send> {
    table: Table<W>,
    rows: Vec<(Row, Option<u64>)>,
    pub stacks: StackTables,
}

impl<W: Write + Send> Writer<W> {
    pub fn new(out: W) -> io::Result<Writer<W>> {
        let table = Table::new(out, EVENTS, &[("vramshim.schema_version", SCHEMA_VERSION.to_owned())])?;
        Ok(Writer {
            table,
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
        self.rows.push((Row::new(process, record), stack));
        match self.rows.len() {
            GROUP_ROWS => self.flush(),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let each = || rows.iter().map(|(row, _)| row);
        let text = |value: &Option<String>| value.as_deref().map(ByteArray::from);
        self.table.group(|columns| {
            columns.int32(each().map(|row| row.process as i32))?;
            columns.int64(each().map(|row| row.time_ns))?;
            columns.int64(each().map(|row| row.unix_ns))?;
            columns.int32(each().map(|row| row.thread as i32))?;
            columns.text(each().map(|row| row.event))?;
            columns.text(each().map(|row| row.api.as_str()))?;
            columns.optional_text(each().map(|row| text(&row.class)))?;
            columns.optional::<Int32Type>(each().map(|row| row.device.map(i32::from)))?;
            columns.optional_int64(each().map(|row| row.address))?;
            columns.optional_int64(each().map(|row| row.requested))?;
            columns.optional_int64(each().map(|row| row.allocated))?;
            columns.optional_int64(each().map(|row| row.reserved))?;
            columns.optional::<Int32Type>(each().map(|row| row.stream.map(i32::from)))?;
            columns.optional::<Int32Type>(each().map(|row| row.result))?;
            columns.optional_text(each().map(|row| text(&row.note)))?;
            columns.optional_int64(each().map(|row| row.device_total))?;
            columns.optional_int64(each().map(|row| row.device_free))?;
            columns.optional_int64(each().map(|row| row.process_bytes))?;
            columns.optional_int64(each().map(|row| row.other))?;
            columns.optional_int64(rows.iter().map(|&(_, stack)| stack))
        })?;
        self.rows = rows;
        self.rows.clear();
        Ok(())
    }

    /// Completes the file of events. Returns the stacks that they name.
    pub fn finish(mut self) -> io::Result<StackTables> {
        if !self.rows.is_empty() {
            self.flush()?;
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
        let mut table = Table::new(out, STACKS, &[("vramshim.schema_version", SCHEMA_VERSION.to_owned())])?;
        let rows = || {
            let numbered = (1u64..).zip(&self.stacks);
            numbered.flat_map(|(stack, frames)| (0..).zip(frames).map(move |(depth, &frame)| (stack, depth, frame)))
        };
        table.group(|columns| {
            columns.int64(rows().map(|(stack, _, _)| stack))?;
            columns.int32(rows().map(|(_, depth, _)| depth))?;
            columns.int64(rows().map(|(_, _, frame)| frame))
        })?;
        table.close()
    }

    pub fn write_frames(&self, out: impl Write + Send) -> io::Result<()> {
        let mut table = Table::new(out, FRAMES, &[("vramshim.schema_version", SCHEMA_VERSION.to_owned())])?;
        table.group(|columns| {
            columns.int64((1u64..).zip(&self.frames).map(|(number, _)| number))?;
            columns.text(self.frames.iter().map(|frame| &*frame.file))?;
            columns.int64(self.frames.iter().map(|frame| frame.line))?;
            columns.text(self.frames.iter().map(|frame| &*frame.function))
        })?;
        table.close()
    }
}
