//! The baseline: the outcome of a run as a file of JSON, which later runs are compared with (`--against`).

use std::io::Read;
use std::path::Path;

use base::text::shown;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fault::Fault;
use super::message::Counts;
use super::prices::Price;

/// The version of the format. It changes if a field changes its meaning or goes.
const VERSION: u64 = 1;
/// The field with the version, which tells a baseline from other JSON.
const VERSION_FIELD: &str = "vramshim_baseline";
/// A longer file is no baseline.
const LONGEST_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Baseline {
    #[serde(rename = "vramshim_baseline")]
    pub version: u64,
    /// The version of vramshim.
    pub program: String,
    /// When the run ended, in UTC.
    pub made: String,
    pub seed: u64,
    pub for_ms: u64,
    pub passed: bool,
    pub interrupted: bool,
    /// By `cuDriverGetVersion`: 13000 is 13.0.
    pub cuda_version: i32,
    /// The version of the driver, by NVML.
    pub driver: Option<String>,
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Device {
    pub ordinal: i32,
    pub uuid: String,
    pub name: String,
    pub total_bytes: u64,
    /// Free bytes with the worker's context and nothing else of the worker.
    pub free_at_idle_bytes: Option<u64>,
    pub context_bytes: Option<u64>,
    /// The most bytes that a worker was allowed to hold.
    pub memory_bytes: u64,
    pub turns: Vec<Turn>,
}

/// What a worker did under one strategy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Turn {
    pub strategy: String,
    pub rounds: u64,
    #[serde(flatten)]
    pub counts: Counts,
    /// Rest points at which the device's figures were compared, and at which they could not be.
    pub compared: u64,
    pub not_compared: u64,
    pub why_not_compared: Vec<String>,
    /// Calls that the device or a layer does not have.
    pub left_out: Vec<String>,
    pub fault: Option<Told>,
    pub prices: Vec<Price>,
}

/// A fault, and what is needed to look into it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    #[serde(flatten)]
    pub fault: Fault,
    pub round: u64,
    /// The command that plays the same again.
    pub again: String,
    /// The folder with the journal and the worker's output.
    pub folder: String,
}

impl Baseline {
    pub const fn version() -> u64 {
        VERSION
    }

    /// Reads a file. The error says what is wrong with it.
    pub fn read(path: &Path) -> Result<Baseline, String> {
        let named = |what: &dyn std::fmt::Display| format!("{}: {what}", shown(path));
        let file = std::fs::File::open(path).map_err(|error| named(&error))?;
        let mut text = Vec::new();
        let read = file
            .take(LONGEST_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(|error| named(&error))?;
        if read as u64 > LONGEST_BYTES {
            return Err(named(&"no baseline of vramshim stress: longer than 64 MiB"));
        }
        Baseline::parse(&text).map_err(|what| named(&what))
    }

    fn parse(text: &[u8]) -> Result<Baseline, String> {
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| format!("no baseline of vramshim stress, because no JSON: {error}"))?;
        match value.get(VERSION_FIELD).map(Value::as_u64) {
            None => Err(format!(
                "no baseline of vramshim stress: it has no field {VERSION_FIELD}"
            )),
            Some(Some(VERSION)) => {
                // The text again: errors then name the line.
                serde_json::from_slice(text).map_err(|error| format!("a damaged baseline of vramshim stress: {error}"))
            }
            Some(Some(other)) => Err(format!(
                "a baseline of version {other}; this program reads version {VERSION}, so make it anew"
            )),
            Some(None) => Err(format!("a damaged baseline: {VERSION_FIELD} is no number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_told() {
        let error = |text: &str| Baseline::parse(text.as_bytes()).expect_err(text);
        assert!(error("").contains("no JSON"));
        assert!(error("[1, 2").contains("no JSON"));
        assert!(error("{}").contains("no field vramshim_baseline"));
        assert!(error("[]").contains("no field vramshim_baseline"));
        assert!(error("{\"vramshim_baseline\": 2}").contains("of version 2"));
        assert!(error("{\"vramshim_baseline\": \"1\"}").contains("is no number"));
        assert!(error("{\"vramshim_baseline\": 1}").contains("missing field"));
    }
}
