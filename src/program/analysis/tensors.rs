//! PyTorch's tensors of a job (`vramshim run --torch`): which lines of code held them, and what other code had then.

use std::collections::BTreeMap;

use base::api::{Api, Class};
use journal::format::{Frame, line_of_the_job};
use serde::{Serialize, Serializer};

use super::device_ledger::Live;
use super::job::Job;
use super::labels::Labels;
use super::live_set::{self, By, DeviceSet, Key, LiveSet};
use super::names::frame_as_json;
use super::tensor_records;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Tensor,
    Other,
    /// PyTorch's snapshots or record do not show it, but it may be PyTorch's: it came later, or between two snapshots, as
    /// the pieces of an expandable segment that does not live long.
    NotShown,
}

impl Whose {
    /// Of an allocation in the live set of a moment. `shown_ns`: until when PyTorch had told its tensors then
    /// (`tensor_records::Tensors::shown_until`).
    pub fn of(live: &Live, tensors: Option<&tensor_records::Tensors>, shown_ns: u64) -> Whose {
        match tensors {
            Some(_) if live.api == Api::torch_alloc.number() => Whose::Tensor,
            Some(_) if live.time_ns > shown_ns => Whose::NotShown,
            Some(tensors) if tensors.snapshots && tensors.are_expandable() && live.class == Class::Vmm.number() => {
                Whose::NotShown
            }
            _ => Whose::Other,
        }
    }
}

/// Tensors that the same line of code allocated.
#[derive(Serialize)]
pub struct Holder {
    /// The line: the innermost one that is not in an installed package.
    #[serde(rename = "line", serialize_with = "frame")]
    pub place: Option<Frame>,
    pub bytes: u64,
    pub tensors: u64,
    /// When the oldest of them was allocated, in nanoseconds since the journal began.
    pub oldest_ns: u64,
    /// The whole stack of the line's tensors with the most bytes, innermost frame first.
    #[serde(serialize_with = "frames")]
    pub stack: Vec<Frame>,
}

fn frame<S: Serializer>(frame: &Option<Frame>, serializer: S) -> Result<S::Ok, S::Error> {
    frame.as_ref().map(frame_as_json).serialize(serializer)
}

fn frames<S: Serializer>(frames: &[Frame], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(frames.iter().map(frame_as_json))
}

/// The tensors of one device at one moment.
#[derive(Serialize)]
pub struct Moment {
    /// Nanoseconds since the journal began.
    pub time_ns: u64,
    pub bytes: u64,
    pub tensors: u64,
    /// Free bytes of PyTorch's segments.
    pub cached: u64,
    /// Most bytes first.
    pub holders: Vec<Holder>,
    /// Bytes that other code had, of any class; and those that came later than PyTorch told, so they may be PyTorch's.
    pub others: u64,
    pub others_or_torch: u64,
    /// Tensors may be missing. Then `bytes` is at least what tensors had.
    pub at_least: bool,
}

#[derive(Serialize)]
pub struct DeviceTensors {
    pub device: i16,
    /// When the process held the most bytes of the device.
    pub peak: Moment,
    /// The last failure for lack of memory; `None` if there was none.
    pub failure: Option<Moment>,
    pub end: Moment,
    /// How often PyTorch had no memory for a tensor.
    pub out_of_memory: usize,
}

#[derive(Serialize)]
pub struct Tensors {
    /// The version of PyTorch.
    pub torch: String,
    /// `state`: what snapshots showed, so tensors that came and went between two are not there, and a tensor's time is that
    /// of the first snapshot with it. `record`: each tensor.
    pub from: &'static str,
    pub recorded: u64,
    /// Allocations that PyTorch made and the record does not have.
    pub lost: u64,
    pub damaged: u64,
    /// Until when the record is complete, in nanoseconds since the journal began.
    pub until_ns: u64,
    pub devices: Vec<DeviceTensors>,
}

impl Tensors {
    /// The tensors of a job at its peak, its last failure for lack of memory and its end; `None` if none were recorded.
    pub fn of(job: &Job, [peak, failure, end]: [Option<&LiveSet>; 3], labels: &Labels) -> Option<Tensors> {
        let recorded = job.tensors.as_ref()?;
        let on = |set: Option<&LiveSet>, device: i16| -> Option<Moment> {
            let mut sets = set.into_iter().flat_map(|set| &set.devices);
            Some(moment(sets.find(|set| set.device == device)?, recorded, labels))
        };
        let of_device = |device: i16| {
            Some(DeviceTensors {
                device,
                peak: on(peak, device)?,
                failure: on(failure, device),
                end: on(end, device)?,
                out_of_memory: recorded.failures_of(device),
            })
        };
        Some(Tensors {
            torch: recorded.torch.clone(),
            from: if recorded.snapshots { "state" } else { "record" },
            recorded: recorded.recorded,
            lost: recorded.lost,
            damaged: recorded.damaged,
            until_ns: recorded.until_ns(),
            devices: recorded.devices().filter_map(of_device).collect(),
        })
    }
}

fn moment(set: &DeviceSet, recorded: &tensor_records::Tensors, labels: &Labels) -> Moment {
    let shown_ns = recorded.shown_until(set.time_ns);
    let of = |whose| (set.live.iter()).filter(move |live| Whose::of(live, Some(recorded), shown_ns) == whose);
    let bytes = |whose| of(whose).fold(0u64, |sum, live| sum.saturating_add(live.allocated));
    let mut lines: BTreeMap<Option<Frame>, Holder> = BTreeMap::new();
    for held in live_set::holders(of(Whose::Tensor), By::Stack, (0, set.time_ns)) {
        let Key::Stack(number) = held.key else { continue };
        let stack = labels.frames(number).unwrap_or_default();
        let place = line_of_the_job(stack).cloned();
        let holder = lines.entry(place.clone()).or_insert_with(|| Holder {
            place,
            bytes: 0,
            tensors: 0,
            oldest_ns: u64::MAX,
            stack: stack.to_vec(),
        });
        holder.bytes = holder.bytes.saturating_add(held.bytes);
        holder.tensors += held.count;
        holder.oldest_ns = holder.oldest_ns.min(held.oldest_ns);
    }
    let mut holders: Vec<Holder> = lines.into_values().collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    Moment {
        time_ns: set.time_ns,
        bytes: bytes(Whose::Tensor),
        tensors: of(Whose::Tensor).count() as u64,
        cached: set.free_inside,
        holders,
        others: bytes(Whose::Other).saturating_add(set.graphs),
        others_or_torch: bytes(Whose::NotShown),
        at_least: recorded.tells_at_least(),
    }
}
