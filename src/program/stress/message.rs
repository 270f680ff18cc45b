//! What a worker is told, and the lines of JSON that it prints.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::prices::Price;

/// What a worker shall do; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The device, by CUDA's number.
    pub device: i32,
    pub seed: u64,
    /// How long new rounds may begin, in milliseconds.
    pub time_ms: u64,
    /// The most bytes of the device that the worker may hold.
    pub memory: u64,
    /// Whether the worker holds at most a quarter of what is free, also if others take memory meanwhile.
    pub leaves_three_quarters: bool,
    pub threads: usize,
    /// Whether each block is an allocation of the driver.
    pub passes_through: bool,
    /// The file that names the calls in progress.
    pub calls: PathBuf,
}

/// A line of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Line {
    /// CUDA is initialised, and no context was made. The worker waits.
    Ready(Ready),
    /// The worker waits.
    Rest(Rest),
    /// The last line of a worker that met a fault.
    Fault(Fault),
    /// The last line of a worker that came to its end.
    Done(Done),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    /// By `cuDriverGetVersion`.
    pub cuda_version: i32,
    /// The version of the driver, by NVML.
    pub driver: Option<String>,
    /// Kinds of memory that the device or a layer does not have.
    pub left_out: Vec<String>,
}

/// Where in its turn a worker rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A context is there, and each kind of memory was used once and given back.
    Start,
    /// Blocks are live.
    Live,
    /// All blocks were freed, and all memory was given back.
    Empty,
}

/// What the books in the worker say while it rests. All sizes are in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rest {
    /// The first round is 1.
    pub round: u64,
    pub phase: Phase,
    /// What the worker holds, by class of memory, and the ledger's requested bytes.
    pub own: BTreeMap<String, u64>,
    pub ledger: BTreeMap<String, u64>,
    /// The ledger's reserved bytes of the device.
    pub reserved: u64,
    /// Of `cuMemGetInfo`, without what is free inside pools of the library.
    pub free: u64,
    pub total: u64,
    /// Managed memory that the worker holds. The driver may keep it in host memory.
    pub managed: u64,
    /// What the driver's pages may take beyond the ledger's bytes.
    pub slack: u64,
    pub counts: Counts,
}

/// What a worker has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub calls: u64,
    pub blocks: u64,
    /// Bytes that were read back and compared.
    pub bytes_checked: u64,
    /// Requests that were refused because the device was full.
    pub refused: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    pub counts: Counts,
    pub prices: Vec<Price>,
}

/// The answers to a worker that waits.
pub const GO_ON: &str = "go on";
pub const AGAIN: &str = "again";
