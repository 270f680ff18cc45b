//! What the page is made from, and what `--json` prints. Sizes are in bytes, times in nanoseconds since the process's
//! journal began. Lists of many numbers are differences (`columns`).

use std::collections::BTreeMap;

use serde::Serialize;

use super::columns::{Differences, Steps};
use super::interned::StackLists;
use crate::analysis::names::api_name;
use crate::analysis::scene::Scene;

/// The number of the data's format.
pub const FORMAT: u32 = 1;

#[derive(Debug, Serialize)]
pub struct Report {
    pub format: u32,
    /// The version of the program.
    pub made_by: &'static str,
    /// The processes, those of the newest run first, and of a run the one to look at first.
    pub processes: Vec<Process>,
    /// Why the first process is the first, if there are several.
    pub first_because: Option<String>,
    /// Journals that could not be read, and why.
    pub unread: Vec<String>,
    /// The process of another run to compare with (`--against`).
    pub against: Option<Box<Process>>,
    #[serde(flatten)]
    pub stacks: StackLists,
}

#[derive(Debug, Default, Serialize)]
pub struct Process {
    pub title: String,
    pub pid: u32,
    pub rank: Option<String>,
    pub host: String,
    /// The path of the journal.
    pub path: String,
    pub command: String,
    pub strategy: String,
    /// The number of the process's run: processes of one run ran at the same time, or at the same time as a third one. 0 is
    /// the newest run.
    pub run: usize,
    /// When the journal began, in RFC 3339.
    pub started: String,
    /// The same in nanoseconds after 1970.
    pub started_unix_ns: u64,
    pub ended: String,
    pub ended_by_failure: bool,
    pub duration_ns: u64,
    pub software: Vec<(String, String)>,
    pub environment: Vec<(String, String)>,
    /// The framework with a cache of its own, whose segments are what the journal calls allocations.
    pub caches: Option<&'static str>,
    /// PyTorch's tensors are known by its snapshots, so what was live is at least what is told.
    pub snapshots: bool,
    /// `shown_verdict`
    pub verdict: serde_json::Value,
    pub trust: Trust,
    pub devices: Vec<Device>,
    /// As in `inspect`: null if the journal does not say.
    pub host_memory: serde_json::Value,
    pub failures: Vec<Failure>,
    /// How many failures there were; more than `failures` has if there were many.
    pub failures_in_all: u64,
    pub marks: Vec<Mark>,
    pub marks_in_all: u64,
    pub holdings: Holdings,
    pub events: Events,
    /// The segments at the last failure, if their free memory would have sufficed.
    pub space: Option<Space>,
}

#[derive(Debug, Default, Serialize)]
pub struct Trust {
    pub events: u64,
    pub lost: u64,
    pub lost_from_ns: Option<u64>,
    pub lost_because: Option<String>,
    pub unfinished: u64,
    pub damaged: u64,
    pub damaged_header: Vec<&'static str>,
    pub anomalies: u64,
    pub unknown_frees: u64,
    /// Allocated bytes with a stack.
    pub stack_bytes: u64,
    /// Allocated bytes without a stack, by reason.
    pub no_stack_bytes: BTreeMap<&'static str, u64>,
    /// What would record the stacks of most of them.
    pub no_stack_remedy: Option<&'static str>,
    pub first_ns: u64,
    pub last_ns: u64,
    pub running: bool,
}

#[derive(Debug, Serialize)]
pub struct Device {
    /// -1 for the host.
    pub ordinal: i16,
    pub name: String,
    pub uuid: Option<String>,
    pub total: Option<u64>,
    pub limit: Option<u64>,
    /// Bytes of live allocations, after rounding.
    pub live: Steps,
    pub reserved: Steps,
    /// Bytes of the device in use by all processes, whenever it was measured.
    pub used: Steps,
    pub peak_bytes: u64,
    pub peak_ns: u64,
    pub peak_reserved: u64,
    pub peak_reserved_ns: u64,
    pub live_at_end: u64,
    pub allocations: u64,
    pub utilisation: Option<f64>,
    pub failures: u64,
}

/// A failed call; repetitions of the same request count once.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub time_ns: u64,
    pub device: i16,
    pub api: String,
    pub tid: u32,
    pub requested: u64,
    pub tries: u64,
    /// How many allocations succeeded after it, before the next failure.
    pub went_on: u64,
}

impl From<&Scene> for Failure {
    fn from(scene: &Scene) -> Failure {
        Failure {
            time_ns: scene.time_ns,
            device: scene.device,
            api: api_name(scene.api),
            tid: scene.tid,
            requested: scene.requested,
            tries: scene.tries,
            went_on: scene.went_on,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Mark {
    pub time_ns: u64,
    pub text: String,
    /// instant, begin or end
    pub kind: &'static str,
}

/// Who held how much at certain moments.
#[derive(Debug, Default, Serialize)]
pub struct Holdings {
    pub moments_ns: Differences,
    /// The moments with a name: their places, kind, device and text.
    pub named: Vec<Named>,
    pub groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
pub struct Named {
    pub moment: usize,
    /// peak, failure, mark or end
    pub kind: &'static str,
    pub device: Option<i16>,
    pub text: String,
}

/// Allocations with the same stack, API, thread, stream and class; without a stack, of the same size.
#[derive(Debug, Default, Serialize)]
pub struct Group {
    pub device: i16,
    pub class: String,
    pub api: String,
    /// 0 if they differ.
    pub tid: u32,
    pub stream: u8,
    /// A place in the report's `stacks`.
    pub stack: Option<usize>,
    /// Requested bytes of each allocation, or the least if `at_least`.
    pub size: Option<u64>,
    pub at_least: bool,
    /// The sum of groups that held little.
    pub rest: bool,
    /// Where the following columns change: numbers of moments.
    pub moments: Differences,
    pub bytes: Differences,
    pub count: Differences,
    /// All allocations so far, also freed ones.
    pub ever_bytes: Differences,
    pub ever_count: Differences,
    /// When the oldest live one was made, in microseconds; 0 if it is not known.
    pub oldest_us: Differences,
}

/// Records: all of them, if there are few.
#[derive(Debug, Default, Serialize)]
pub struct Events {
    pub in_all: u64,
    pub kinds: Vec<&'static str>,
    pub apis: Vec<String>,
    pub number: Differences,
    pub times_ns: Differences,
    pub kind: Vec<usize>,
    pub api: Vec<usize>,
    pub device: Vec<i16>,
    pub tid: Differences,
    pub bytes: Differences,
    pub address: Differences,
    /// A place in the report's `stacks` plus one; 0 for none.
    pub stack: Vec<usize>,
    /// What else there is to say, by the event's place.
    pub notes: BTreeMap<usize, String>,
}

/// The segments of a device at a moment, and what was free in them.
#[derive(Debug, Serialize)]
pub struct Space {
    pub device: i16,
    pub time_ns: u64,
    pub requested: u64,
    pub free: u64,
    pub largest_free: u64,
    pub segments: Vec<Segment>,
    pub left_out: u64,
}

#[derive(Debug, Serialize)]
pub struct Segment {
    pub address: u64,
    pub bytes: u64,
    pub live: u64,
    /// Offset and length of the free ranges; if there are many, the largest.
    pub free: Vec<(u64, u64)>,
}
