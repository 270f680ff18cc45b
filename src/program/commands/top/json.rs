//! Devices, processes and events as JSON: sizes in bytes, nothing rounded.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::machine::Machine;
use super::{devices, events};
use crate::analysis::device_ledger::DeviceLedger;
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
    let empty = DeviceLedger::default();
    let job = &watched.job;
    let host = machine.host(id);
    let device = |(ordinal, entry, ledger): (_, Option<&journal::reader::Device>, Option<&DeviceLedger>)| {
        let ledger = ledger.unwrap_or(&empty);
        let (all, free) = (&ledger.all, ledger.free());
        let uuid = entry.and_then(|entry| device_uuid(&entry.uuid));
        let by_nvml = |uuid: &String| devices::bytes_of(machine, &host.id(), uuid, watched.pid);
        json!({
            "device": ordinal,
            "nvml_bytes": uuid.as_ref().and_then(by_nvml),
            "uuid": uuid,
            "simulator": host.name(),
            "requested": all.requested.current,
            "allocated": all.allocated.current,
            "reserved": all.reserved.current,
            "held": watched.job.held(ordinal),
            "limit": entry.and_then(|entry| entry.limit),
            "free_inside": free.bytes,
            "largest_free_block": free.largest,
            "live": all.live,
            "failures": ledger.failures,
            "reclaims": ledger.reclaims,
            "allocations": all.count,
            "frees": all.count.saturating_sub(all.live),
        })
    };
    json!({
        "pid": watched.pid,
        "host": job.header.host,
        "job": job.header.job,
        "strategy": job.header.strategy,
        "command": job.header.command_line.join(" "),
        "events_lost": job.lost,
        "host_memory": host_memory::as_json(&job.ledger.host),
        "devices": job.devices().into_iter().map(device).collect::<Vec<Value>>(),
    })
}
