//! Reconciliation as JSON: sizes in bytes, nothing rounded.

use serde_json::{Value, json};

use super::Round;
use crate::analysis::measurements::Balance;
use crate::analysis::reconciliation::{Context, Differences};
use crate::analysis::side_by_side::{Device, Process};
use crate::render::format;

pub fn describe(round: &Round) -> Value {
    json!({
        "devices": round.devices.iter().map(device).collect::<Value>(),
        "bound": round.bound,
        "within_bound": round.within_bound(),
    })
}

fn device(device: &Device) -> Value {
    let nvml = device.nvml.as_ref().map(|reading| {
        json!({
            "total": reading.total,
            "used": reading.used,
            "free": reading.free,
            "reserved": reading.reserved,
        })
    });
    json!({
        "uuid": device.uuid,
        "name": device.name,
        "total": device.total,
        // null is now
        "time": device.at.map(format::time),
        "nvml": nvml,
        "processes": device.processes.iter().map(process).collect::<Value>(),
        "other_processes": device.other_processes,
        "unknown": device.unknown,
        "compared": device.compared,
        "notes": device.notes,
    })
}

fn process(process: &Process) -> Value {
    let mut description = part(&process.balance, process.nvml_used, process.driver, process.context);
    description["pid"] = json!(process.pid);
    description["job"] = json!(process.job);
    description["differences"] = differences(&process.differences);
    description
}

/// What the sides say of one process.
pub fn part(balance: &Balance, nvml: Option<u64>, driver: Option<(u64, u64)>, context: Option<Context>) -> Value {
    json!({
        "ledger": {
            "requested": balance.requested,
            "allocated": balance.allocated,
            "reserved": balance.reserved,
            "free_inside": balance.free_inside,
        },
        "nvml_used": nvml,
        "driver": driver.map(|(total, free)| json!({ "total": total, "free": free })),
        "context_basis": context.map(|context| context.basis.name()),
    })
}

pub fn differences(differences: &Differences) -> Value {
    json!({
        "context": differences.context,
        "module_code": differences.module_code,
        "rounding": differences.rounding,
        "managed": differences.managed,
        "unknown": differences.unknown,
    })
}
