//! PyTorch's tensors of a job (`vramshim run --torch`): which lines of code held them, and what other code had then.

use std::collections::BTreeMap;

use base::api::Api;
use journal::format::{Frame, line_of_the_job};
use journal::reader::Journal;
use serde::{Serialize, Serializer};

use super::job::LoadError;
use super::live_set::{self, DeviceSet, LiveSet, Moment as When};
use super::names::frame_as_json;
use super::origins::Origins;
use super::tensor_records;

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
    /// Bytes that other code had, of any class.
    pub others: u64,
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

/// The tensors of a journal; `None` if none were recorded.
pub fn load(journal: &Journal) -> Result<Option<Tensors>, LoadError> {
    let (job, sets) = live_set::read(journal, &[When::Peak, When::OutOfMemory, When::End])?;
    let Some(recorded) = &job.tensors else {
        return Ok(None);
    };
    // A file of stacks that cannot be read is named where tensors are named.
    let origins = Origins::new(None, tensor_records::stacks(journal.path()).unwrap_or_default());
    let mut sets = sets.into_iter();
    let [peak, failure, end] = std::array::from_fn(|_| sets.next().flatten());
    let on = |set: &Option<LiveSet>, device: i16| -> Option<Moment> {
        let set = set
            .iter()
            .flat_map(|set| &set.devices)
            .find(|set| set.device == device)?;
        Some(moment(set, &origins))
    };
    let of_device = |device: i16| {
        Some(DeviceTensors {
            device,
            peak: on(&peak, device)?,
            failure: on(&failure, device),
            end: on(&end, device)?,
            out_of_memory: recorded.failures_of(device),
        })
    };
    Ok(Some(Tensors {
        torch: recorded.torch.clone(),
        from: if recorded.snapshots { "state" } else { "record" },
        recorded: recorded.recorded,
        lost: recorded.lost,
        damaged: recorded.damaged,
        until_ns: recorded.until_ns(),
        devices: recorded.devices().filter_map(of_device).collect(),
    }))
}

fn moment(set: &DeviceSet, origins: &Origins) -> Moment {
    let is_tensor = |api: u16| api == Api::torch_alloc.number();
    let tensors = set.live.iter().filter(|live| is_tensor(live.api));
    let of_tensors = live_set::holders(tensors, |live| live_set::Key::Stack(live.stack));
    let (mut bytes, mut count) = (0u64, 0);
    let mut lines: BTreeMap<Option<Frame>, Holder> = BTreeMap::new();
    for held in of_tensors {
        bytes = bytes.saturating_add(held.bytes);
        count += held.count;
        let stack = match held.key {
            live_set::Key::Stack(number) => origins.frames(number),
            _ => None,
        };
        let stack = stack.unwrap_or_default();
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
        bytes,
        tensors: count,
        cached: set.free_inside,
        holders,
        others: set.allocated.saturating_sub(bytes),
    }
}
