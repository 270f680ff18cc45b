//! speedscope's own format (<https://www.speedscope.app/file-format-schema.json>): a sampled profile for each device of
//! each process, whose samples are stacks and whose weights are live bytes at the moment.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use crate::escaped;
use journal::format::Frame;
use serde_json::{Value, json};

use super::holders::{Key, Sums, memory_name, shown_frames};
use super::source::Process;

#[derive(Default)]
pub struct Document {
    frames: Vec<Value>,
    numbers: HashMap<Frame, usize>,
    profiles: Vec<Value>,
}

impl Document {
    fn frame(&mut self, frame: Frame) -> usize {
        if let Some(&number) = self.numbers.get(&frame) {
            return number;
        }
        let mut value = json!({"name": &*frame.function});
        if !frame.file.is_empty() {
            value["file"] = (&*frame.file).into();
        }
        if frame.line > 0 {
            value["line"] = frame.line.into();
        }
        self.frames.push(value);
        self.numbers.insert(frame, self.frames.len() - 1);
        self.frames.len() - 1
    }

    pub fn add(&mut self, process: &Process, sums: &BTreeMap<Key, Sums>) {
        let mut devices: BTreeMap<i16, Vec<(Vec<usize>, u64)>> = BTreeMap::new();
        for (key, sum) in sums.iter().filter(|(_, sum)| sum.held_bytes > 0) {
            let frames = shown_frames(process, key).into_iter().rev();
            let sample = frames.map(|frame| self.frame(frame)).collect();
            devices.entry(key.device).or_default().push((sample, sum.held_bytes));
        }
        for (device, mut samples) in devices {
            // Equal stacks side by side, so that the view "time order" shows them as one.
            samples.sort_unstable();
            let bytes: u64 = samples.iter().map(|(_, bytes)| bytes).sum();
            let (samples, weights): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
            self.profiles.push(json!({
                "type": "sampled",
                "name": format!("{}, {}", memory_name(device), process.title()),
                "unit": "bytes",
                "startValue": 0,
                "endValue": bytes,
                "samples": samples,
                "weights": weights,
            }));
        }
    }

    pub fn write(self, out: &mut dyn Write, name: &str) -> io::Result<()> {
        let document = json!({
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": name,
            "exporter": concat!("vramshim@", env!("CARGO_PKG_VERSION")),
            "activeProfileIndex": 0,
            "shared": {"frames": self.frames},
            "profiles": self.profiles,
        });
        escaped::line(out, &document)
    }
}
