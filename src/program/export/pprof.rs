//! pprof's profile.proto, gzipped: live bytes and allocations at the moment (`inuse_space`, `inuse_objects`), and all
//! that was allocated until then (`alloc_space`, `alloc_objects`), by stack, with device, API and thread as labels.
//!
//! The messages are those of <https://github.com/google/pprof/blob/main/proto/profile.proto>, with the fields that are
//! written here.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use journal::format::Frame;
use prost::Message;

use super::holders::{Key, Sums, memory_name, shown_frames};
use super::source::Process;
use crate::analysis::names::api_name;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
    #[prost(int64, tag = "3")]
    num: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// A profile under construction.
pub struct Builder {
    profile: Profile,
    texts: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<Frame, u64>,
}

impl Builder {
    pub fn new() -> Builder {
        let mut builder = Builder {
            profile: Profile::default(),
            texts: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
        };
        // The first text must be empty.
        builder.text("");
        let kinds = [
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ];
        for (kind, unit) in kinds {
            let (kind, unit) = (builder.text(kind), builder.text(unit));
            builder.profile.sample_type.push(ValueType { kind, unit });
        }
        builder.profile.default_sample_type = builder.text("inuse_space");
        builder
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.texts.get(text) {
            return number;
        }
        let number = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), number);
        number
    }

    fn location(&mut self, frame: Frame) -> u64 {
        if let Some(&number) = self.locations.get(&frame) {
            return number;
        }
        let (name, filename) = (self.text(&frame.function), self.text(&frame.file));
        let next = self.profile.function.len() as u64 + 1;
        let function_id = *self.functions.entry((name, filename)).or_insert(next);
        if function_id == next {
            self.profile.function.push(Function {
                id: next,
                name,
                filename,
            });
        }
        let id = self.profile.location.len() as u64 + 1;
        let line = i64::try_from(frame.line).unwrap_or(0);
        self.profile.location.push(Location {
            id,
            line: vec![Line { function_id, line }],
        });
        self.locations.insert(frame, id);
        id
    }

    pub fn add(&mut self, process: &Process, sums: &BTreeMap<Key, Sums>, several: bool) {
        let start = process.header().wall_start_ns as i64;
        let time = &mut self.profile.time_nanos;
        *time = if *time == 0 { start } else { start.min(*time) };
        for (key, sum) in sums {
            let location_id = shown_frames(process, key)
                .into_iter()
                .map(|frame| self.location(frame))
                .collect();
            let mut label = Vec::new();
            for (name, value) in [("device", memory_name(key.device)), ("api", api_name(key.api))] {
                let (key, str) = (self.text(name), self.text(&value));
                label.push(Label { key, str, num: 0 });
            }
            let thread = self.text("thread");
            label.push(Label {
                key: thread,
                str: 0,
                num: i64::from(key.thread),
            });
            if several {
                let (key, str) = (self.text("process"), self.text(&process.title()));
                label.push(Label { key, str, num: 0 });
            }
            let values = [sum.all_count, sum.all_bytes, sum.held_count, sum.held_bytes];
            self.profile.sample.push(Sample {
                location_id,
                value: values.map(|value| i64::try_from(value).unwrap_or(i64::MAX)).to_vec(),
                label,
            });
        }
    }

    pub fn write(mut self, out: &mut dyn Write, comment: &str) -> io::Result<()> {
        let comment = self.text(comment);
        self.profile.comment.push(comment);
        let mut zipped = GzEncoder::new(out, Compression::default());
        zipped.write_all(&self.profile.encode_to_vec())?;
        zipped.finish()?.flush()
    }
}
