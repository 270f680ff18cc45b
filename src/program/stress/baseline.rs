//! The baseline: the outcome of a run as JSON, and what differs from one in a later run (`--against`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read};
use std::path::Path;

use journal::reader::plain;
use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use crate::render::format::size;

/// The version of the format. It changes if a field changes its meaning or goes.
pub const VERSION: u64 = 1;
/// A longer file is no baseline.
const LONGEST_BYTES: u64 = 64 << 20;
/// Free memory at idle that moved by less is not told.
const IDLE_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Baseline {
    /// Tells a baseline from other JSON.
    pub vramshim_baseline: u64,
    pub program: String,
    pub seed: u64,
    /// Whether nothing broke, and the run went on to its end.
    pub passed: bool,
    /// By `cuDriverGetVersion`: 13000 is 13.0.
    pub cuda_version: i32,
    /// The version of the driver, by its kernel module.
    pub driver: Option<String>,
    pub devices: Vec<Device>,
    #[serde(skip_deserializing)]
    pub against: Option<Comparison>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Device {
    pub ordinal: i32,
    pub uuid: String,
    pub name: String,
    pub total_bytes: u64,
    /// The most bytes that a worker was allowed to hold.
    pub memory_bytes: u64,
    pub turns: Vec<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// What differs, such as `cuda_version` or `device 0: name`.
    pub what: String,
    pub before: String,
    pub now: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Devices are compared by CUDA's number.
    pub fn new(before: &Baseline, run: &Baseline) -> Comparison {
        let (then, now) = (before.facts(before), run.facts(before));
        let told = |facts: &BTreeMap<String, String>, what| facts.get(what).cloned().unwrap_or("not there".to_owned());
        let whats: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
        let differences = whats.into_iter().map(|what| Difference {
            what: what.clone(),
            before: told(&then, what),
            now: told(&now, what),
        });
        Comparison {
            differences: differences.filter(|one| one.before != one.now).collect(),
        }
    }
}

impl Baseline {
    /// The error says why the file cannot be used.
    pub fn read(path: &Path) -> Result<Baseline, String> {
        let file = plain::open(path).and_then(|file| file.ok_or(io::ErrorKind::InvalidInput.into()));
        let file = file.map_err(|error| error.to_string())?.take(LONGEST_BYTES);
        let run: Result<Baseline, _> = serde_json::from_reader(BufReader::new(file));
        match run.map_err(|error| format!("no baseline of vramshim stress: {error}"))? {
            run if run.vramshim_baseline == VERSION => Ok(run),
            other => Err(format!(
                "a baseline of version {}; this program reads version {VERSION}, so make it anew",
                other.vramshim_baseline
            )),
        }
    }

    /// What is compared word by word. Free memory that is near to what it was `before` is told as it was.
    fn facts(&self, before: &Baseline) -> BTreeMap<String, String> {
        let idle = |device: &Device| device.turns.iter().find_map(|turn| turn.free_at_idle_bytes);
        let driver = self.driver.as_deref().unwrap_or("not known");
        let mut facts = BTreeMap::from([
            ("driver".to_owned(), driver.to_owned()),
            ("cuda_version".to_owned(), self.cuda_version.to_string()),
            ("program".to_owned(), self.program.clone()),
        ]);
        for device in &self.devices {
            let mut note = |what: &str, value| facts.insert(format!("device {}: {what}", device.ordinal), value);
            note("uuid", device.uuid.clone());
            note("name", device.name.clone());
            note("total_memory", size(device.total_bytes));
            if let Some(now) = idle(device) {
                let mut then = before.devices.iter().filter(|then| then.ordinal == device.ordinal);
                let near = then.find_map(idle).filter(|then| then.abs_diff(now) < IDLE_BYTES);
                note("free_at_idle", size(near.unwrap_or(now)));
            }
            for turn in &device.turns {
                let fault = turn.fault.as_ref().map_or("no fault", |fault| &fault.words);
                note(&turn.strategy, fault.to_owned());
            }
        }
        facts
    }
}
