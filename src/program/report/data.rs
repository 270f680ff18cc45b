//! What the page is made from, and what `--json` prints. Sizes are in bytes, times in nanoseconds since the process's
//! journal began. Lists of many numbers are differences (`columns`).

use std::collections::BTreeMap;

use serde::Serialize;

use super::columns::Differences;
use super::interned::StackLists;
use crate::analysis::names::api_name;
use crate::analysis::scene::Scene;

pub const FORMAT: u32 = 1;

#[derive(Debug, Serialize)]
pub struct Report {
    pub format: u32,
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
    pub pid: u32,
    pub rank: Option<String>,
    /// The number of the process's run: processes of one run ran at the same time, or at the same time as a third one. 0 is
    /// the newest run.
    pub run: usize,
    /// When the journal began, in nanoseconds after 1970.
    pub started_unix_ns: u64,
    pub ended_by_failure: bool,
    pub duration_ns: u64,
    /// When the failure was that the verdict is about.
    #[serde(skip)]
    pub failed_ns: Option<u64>,
    /// The most allocated bytes of a device.
    #[serde(skip)]
    pub peak_bytes: u64,
    /// What `about` says: the process, its verdict, how far its journal can be trusted, and its devices.
    #[serde(flatten)]
    pub about: serde_json::Value,
    pub failures: Vec<Failure>,
    /// How many failures there were; more than `failures` has if there were many.
    pub failures_in_all: u64,
    pub marks: Vec<Mark>,
    pub marks_in_all: u64,
    /// What marks begin and end: the text, the times of begin and end, and in how many others it began. Without an end the
    /// time is null.
    pub ranges: Vec<(String, u64, Option<u64>, usize)>,
    pub holdings: Holdings,
    pub events: Events,
    /// The segments at the last failure, if their free memory would have sufficed.
    pub space: Option<serde_json::Value>,
    /// What each strategy would have needed on the device of the failure, or else on the one with most live bytes; `None` if the
    /// requests were not played.
    pub replay: Option<Replay>,
}

/// The requests of one device, played through each strategy (`vramshim replay`).
#[derive(Debug, Serialize)]
pub struct Replay {
    pub device: i16,
    pub device_memory: u64,
    pub peak_live: u64,
    /// The job would have gone on, or had memory that was not played: figures are at least what a strategy needs.
    pub at_least: bool,
    pub strategies: Vec<Played>,
}

#[derive(Debug, Serialize)]
pub struct Played {
    pub name: &'static str,
    /// Why nothing is known of the strategy; the other fields are then null.
    pub not_known: Option<&'static str>,
    pub peak_reserved: Option<u64>,
    pub driver_ns: Option<u64>,
    pub failed: Option<u64>,
}

/// A failed call; repetitions of the same request count once.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub time_ns: u64,
    pub device: i16,
    pub api: String,
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

#[derive(Debug, Default, Serialize)]
pub struct Named {
    pub moment: usize,
    /// peak, failure, mark or end
    pub kind: &'static str,
    pub device: Option<i16>,
    pub text: String,
    /// What was live then is known: PyTorch's tensors were recorded, or one of its snapshots shows that very moment.
    pub exact: bool,
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
