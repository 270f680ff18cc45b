//! PyTorch's memory snapshot (`torch.cuda.memory._dump_snapshot`, a pickle of plain values): the recorded history of the
//! device with the most of it. What was allocated before the recording began is live from the start.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde_pickle::{DeOptions, HashableValue, Value};

use super::trace::{Gathering, Source};

pub fn gather(path: &Path, gathering: &mut Gathering) -> Result<Source, String> {
    let file = File::open(path).map_err(|problem| format!("cannot be read: {problem}"))?;
    let page = serde_pickle::value_from_reader(BufReader::new(file), DeOptions::new().replace_recursive_structures())
        .map_err(|problem| {
        format!("is no pickle of plain values: {problem}; give what torch.cuda.memory._dump_snapshot wrote")
    })?;
    let traces = list(field(&page, "device_traces")).ok_or(
        "has no device_traces: it is no memory snapshot of PyTorch; give what torch.cuda.memory._dump_snapshot wrote",
    )?;
    let longest = traces
        .iter()
        .enumerate()
        .filter_map(|(device, trace)| Some((device, list(Some(trace))?)));
    let (device, events) = longest
        .max_by_key(|(_, events)| events.len())
        .filter(|(_, events)| !events.is_empty())
        .ok_or(
            "has no recorded history: call torch.cuda.memory._record_memory_history() at the start of the job and run it \
             again",
        )?;

    // An address that is freed before it is allocated was live when the recording began; so was an active block that no
    // event names.
    let mut before = BTreeMap::new();
    let mut seen = HashSet::new();
    for event in events {
        let (Some(action), Some(address)) = (text(event, "action"), number(event, "addr")) else {
            continue;
        };
        match action {
            "alloc" => drop(seen.insert(address)),
            "free_completed" if seen.insert(address) => {
                before.insert(address, (number(event, "size").unwrap_or(0), number(event, "stream")));
            }
            _ => {}
        }
    }
    for segment in list(field(&page, "segments")).unwrap_or_default() {
        if number(segment, "device") != Some(device as u64) {
            continue;
        }
        let stream = number(segment, "stream");
        for block in list(field(segment, "blocks")).unwrap_or_default() {
            let address = number(block, "address");
            let active = text(block, "state") == Some("active_allocated");
            if let (true, Some(address)) = (active, address)
                && !seen.contains(&address)
            {
                let size = number(block, "requested_size").or(number(block, "size")).unwrap_or(0);
                before.insert(address, (size, stream));
            }
        }
    }
    for (address, (size, stream)) in before {
        gathering.allocate(address, size, stream);
    }
    for (index, event) in events.iter().enumerate() {
        let (Some(action), Some(address)) = (text(event, "action"), number(event, "addr")) else {
            continue;
        };
        match action {
            "alloc" => {
                let unusable =
                    || format!("event {index} of device {device} allocates no usable size: dump the snapshot again");
                gathering.allocate(
                    address,
                    number(event, "size").ok_or_else(unusable)?,
                    number(event, "stream"),
                );
            }
            "free_completed" => gathering.free(address),
            _ => {}
        }
    }
    let expandable = field(&page, "allocator_settings").and_then(|settings| field(settings, "expandable_segments"));
    Ok(Source::Snapshot {
        expandable: expandable == Some(&Value::Bool(true)),
    })
}

fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Dict(fields) => fields.get(&HashableValue::String(name.to_owned())),
        _ => None,
    }
}

fn list(value: Option<&Value>) -> Option<&[Value]> {
    match value? {
        Value::List(entries) | Value::Tuple(entries) => Some(entries),
        _ => None,
    }
}

fn number(value: &Value, name: &str) -> Option<u64> {
    match field(value, name)? {
        Value::I64(number) => u64::try_from(*number).ok(),
        Value::Int(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    match field(value, name)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}
