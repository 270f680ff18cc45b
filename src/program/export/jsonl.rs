//! One JSON object a line: `process` for each process, `stack` before its first use, and `event` for each event.
//! Missing values are left out.

use std::collections::HashSet;
use std::io::{self, Write};

use crate::escaped;
use journal::format::Record;
use serde_json::{Map, Value, json};

use super::row::{Row, SCHEMA_VERSION};
use super::source::Process;

pub struct Writer<'w> {
    out: &'w mut dyn Write,
    told: HashSet<u32>,
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write) -> Writer<'w> {
        Writer {
            out,
            told: HashSet::new(),
        }
    }

    fn line(&mut self, value: &Value) -> io::Result<()> {
        escaped::line(&mut self.out, value)
    }

    /// The events that follow are of this process.
    pub fn process(&mut self, process: &Process) -> io::Result<()> {
        self.told.clear();
        let header = process.header();
        let devices = header.devices.iter().map(|device| {
            json!({
                "device": device.ordinal,
                "name": device.name,
                "total_memory": device.total_memory,
                "limit": device.limit,
            })
        });
        self.line(&json!({
            "kind": "process",
            "schema": SCHEMA_VERSION,
            "process": header.pid,
            "host": header.host,
            "job": header.job,
            "command": header.command_line,
            "strategy": header.strategy,
            "start_unix_ns": header.wall_start_ns,
            "exit_status": process.exit_status(),
            "devices": devices.collect::<Vec<_>>(),
        }))
    }

    pub fn add(&mut self, process: &Process, record: &Record) -> io::Result<()> {
        let row = Row::of(process, record);
        let frames = process.frames(record.stack);
        if !frames.is_empty() && self.told.insert(record.stack) {
            let frames = frames
                .iter()
                .map(|frame| json!({"file": &*frame.file, "line": frame.line, "function": &*frame.function}));
            let frames: Vec<Value> = frames.collect();
            self.line(&json!({"kind": "stack", "process": row.process, "stack": record.stack, "frames": frames}))?;
        }
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| {
            if !value.is_null() {
                object.insert(name.to_owned(), value);
            }
        };
        put("kind", "event".into());
        put("process", row.process.into());
        put("time_ns", row.time_ns.into());
        put("unix_ns", row.unix_ns.into());
        put("thread", row.thread.into());
        put("event", row.event.into());
        put("api", row.api.into());
        put("class", row.class.into());
        put("device", row.device.into());
        put("address", row.address.into());
        put("requested", row.requested.into());
        put("allocated", row.allocated.into());
        put("reserved", row.reserved.into());
        put("stream", row.stream.into());
        put("result", row.result.into());
        put("note", row.note.into());
        put("device_total", row.device_total.into());
        put("device_free", row.device_free.into());
        put("process_bytes", row.process_bytes.into());
        put("other", row.other.into());
        put("stack", row.stack.filter(|&stack| stack > 0).into());
        self.line(&Value::Object(object))
    }
}
