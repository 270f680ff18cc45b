//! Devices and processes as JSON: sizes in bytes, nothing rounded.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::machine::Machine;
use super::rows;
use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::names::device_uuid;
use crate::analysis::watch::Watched;
use crate::render::reclaims;

pub fn write(out: &mut impl Write, machine: &Machine) -> io::Result<()> {
    let devices: Vec<Value> = rows::devices(machine)
        .iter()
        .map(|device| {
            json!({
                "uuid": device.uuid,
                "name": device.name,
                "total_memory": device.total_memory,
                "requested": device.requested,
                "allocated": device.allocated,
                "reserved": device.reserved,
                "processes": device.processes,
            })
        })
        .collect();
    let mut watched: Vec<&Watched> = machine.processes().map(|(_, watched)| watched).collect();
    watched.sort_by_key(|watched| watched.pid);
    let processes: Vec<Value> = watched.into_iter().map(process).collect();
    writeln!(out, "{:#}", json!({ "devices": devices, "processes": processes }))
}

fn process(watched: &Watched) -> Value {
    let empty = DeviceLedger::default();
    let job = &watched.job;
    let device = |(ordinal, entry, ledger): (_, Option<&journal::reader::Device>, Option<&DeviceLedger>)| {
        let ledger = ledger.unwrap_or(&empty);
        let (all, free) = (&ledger.all, ledger.free());
        json!({
            "device": ordinal,
            "uuid": entry.and_then(|entry| device_uuid(&entry.uuid)),
            "requested": all.requested.current,
            "allocated": all.allocated.current,
            "reserved": all.reserved.current,
            "limit": entry.and_then(|entry| entry.limit),
            "free_inside": free.bytes,
            "largest_free_block": free.largest,
            "utilisation": all.utilisation(),
            "live": all.live,
            "failures": ledger.failures,
            "reclaims": reclaims::as_json(&ledger.reclaims),
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
        "devices": job.devices().into_iter().map(device).collect::<Vec<Value>>(),
    })
}
