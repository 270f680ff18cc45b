//! Devices, processes and events as JSON: sizes in bytes, nothing rounded.

use std::time::{SystemTime, UNIX_EPOCH};

use journal::reader::Device;
use serde_json::{Value, json};

use super::machine::Machine;
use super::{devices, events};
use crate::analysis::figures::positive;
use crate::analysis::names::device_uuid;
use crate::analysis::running::FileId;
use crate::analysis::watch::Watched;
use crate::render::host_memory;

/// The present state, and the events since the last call.
pub fn page(machine: &mut Machine) -> Value {
    let events: Vec<Value> = machine.take_events().iter().map(events::as_json).collect();
    let mut watched: Vec<(FileId, &Watched)> = machine.processes().collect();
    watched.sort_by_key(|(_, watched)| watched.pid);
    let processes: Vec<Value> = watched
        .into_iter()
        .map(|(id, watched)| process(machine, id, watched))
        .collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    json!({
        "time_unix_ns": now.map_or(0, |since| since.as_nanos() as u64),
        "devices": devices::devices(machine),
        "processes": processes,
        "other_processes": devices::others(machine),
        "events": events,
        "nvml_problem": devices::problem(machine),
        "nvml_layer": devices::layer(machine),
    })
}

fn process(machine: &Machine, id: FileId, watched: &Watched) -> Value {
    let (host, header) = (machine.host(id), watched.header());
    let device = |(ordinal, entry): (i16, Option<&Device>)| {
        let (levels, figures) = (watched.figures.levels(ordinal), watched.figures.devices.get(&ordinal));
        let uuid = entry.and_then(|entry| device_uuid(&entry.uuid));
        let by_nvml = |uuid: &String| devices::bytes_of(machine, &host.id(), uuid, watched.pid);
        json!({
            "device": ordinal,
            "nvml_bytes": uuid.as_ref().and_then(by_nvml),
            "uuid": uuid,
            "simulator": host.name(),
            "requested": positive(levels.requested),
            "allocated": positive(levels.allocated),
            "reserved": positive(levels.reserved),
            "held": watched.held(ordinal),
            "limit": entry.and_then(|entry| entry.limit),
            "live_count": positive(levels.live),
            "failed_calls": figures.map_or(0, |figures| figures.counts.failed()),
            "reclaims": figures.map(|figures| figures.reclaims).unwrap_or_default(),
            "allocations": positive(levels.made),
            "frees": positive(levels.made - levels.live),
        })
    };
    json!({
        "pid": watched.pid,
        "host": header.host,
        "job": header.job,
        "strategy": header.strategy,
        "command": header.command_line.join(" "),
        "events_lost": watched.lost(),
        "host_memory": host_memory::as_json(&watched.figures.host),
        "devices": watched.devices().into_iter().map(device).collect::<Vec<Value>>(),
    })
}
