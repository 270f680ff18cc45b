//! What a worker is told, what it tells, and what can break.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analysis::names::result_name;
use crate::render::format::size;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Linear,
    /// Of the driver's default pool, in the order of a stream.
    Async,
    /// A handle, mapped at reserved addresses.
    Mapped,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Linear, Kind::Async, Kind::Mapped];

    /// The call that hands the memory out, and the classes of shim.h in which the memory counts.
    const fn facts(self) -> (&'static str, &'static [&'static CStr]) {
        match self {
            Kind::Linear => ("cuMemAlloc", &[c"linear"]),
            Kind::Async => ("cuMemAllocAsync", &[c"async"]),
            Kind::Mapped => ("cuMemCreate", &[c"vmm", c"address_range"]),
        }
    }

    pub const fn call(self) -> &'static str {
        self.facts().0
    }

    pub const fn classes(self) -> &'static [&'static CStr] {
        self.facts().1
    }
}

/// What a worker shall do; its only argument, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The device, by CUDA's number.
    pub device: i32,
    pub uuid: String,
    pub strategy: String,
    /// Whether each block is an allocation of the driver.
    pub passes_through: bool,
    /// What the device has, and the granularity of mapped memory in bytes.
    pub kinds: Vec<Kind>,
    pub granule: u64,
    pub seed: u64,
    /// How long new rounds may begin, in milliseconds.
    pub time_ms: u64,
    /// The most bytes of the device that the worker may hold.
    pub memory: u64,
    /// The bytes by which figures may differ.
    pub bound: u64,
    pub patience: Duration,
}

/// What came of a turn so far. A worker prints it as a line of JSON at each rest point and at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub strategy: String,
    pub rounds: u64,
    pub calls: u64,
    pub blocks: u64,
    /// Bytes that were read back and compared.
    pub bytes_checked: u64,
    /// Requests that were refused because the device was full.
    pub refused: u64,
    /// Rest points at which the device's figures were compared, and at which they could not be.
    pub compared: u64,
    pub not_compared: u64,
    pub why_not_compared: BTreeSet<String>,
    /// Calls that the device does not have.
    pub left_out: Vec<String>,
    /// Free bytes with the worker's context and nothing else of the worker.
    pub free_at_idle_bytes: Option<u64>,
    pub fault: Option<Fault>,
    pub is_done: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    #[default]
    NotStarted,
    CallFailed,
    /// A request was refused for lack of memory while the device had enough.
    NoMemory,
    /// A block was handed out that covers bytes of a live block.
    HandedOutTwice,
    /// A block no longer has the bytes that were written to it.
    BytesChanged,
    /// The ledger does not have what the worker holds, or has memory although all of it was freed.
    LedgerDiffers,
    /// Free memory by `cuMemGetInfo` moved by other bytes than the ledger.
    DriverDiffers,
    /// NVML's figures moved by other bytes than the ledger or the driver.
    NvmlDiffers,
    /// The device has less free memory after the worker's end than before its start.
    NotGivenBack,
    /// A call did not return, or the worker did not end.
    Hangs,
    /// The worker was ended by a signal, or ended by itself without a reason.
    Died,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: FaultKind,
    /// The call of the driver, if one is to blame, and what it answered.
    pub call: Option<String>,
    pub code: Option<i32>,
    /// The whole sentence, for people.
    pub words: String,
    /// The command that plays the same again, and the folder with the journal and the worker's output.
    pub again: String,
    pub folder: String,
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Fault {
        Fault::new(FaultKind::NotStarted, error.to_string())
    }
}

impl Fault {
    pub fn new(kind: FaultKind, words: impl Into<String>) -> Fault {
        let mut fault = Fault::default();
        (fault.kind, fault.words) = (kind, words.into());
        fault
    }

    pub fn in_call(mut self, call: &str) -> Fault {
        self.call = Some(call.to_owned());
        self
    }

    /// A call that answered an error.
    pub fn answered(call: &str, code: i32, bytes: u64) -> Fault {
        let request = format!("{call} of {}", size(bytes));
        let request = if bytes > 0 { &request } else { call };
        let words = format!("{request} answered {} ({code})", result_name(code));
        let mut fault = Fault::new(FaultKind::CallFailed, words).in_call(call);
        fault.code = Some(code);
        fault
    }
}
