//! The devices of one comparison, and the bound for their unknown bytes.

use serde_json::{Value, json};

use crate::analysis::side_by_side::{Device, Process};
use crate::render::format;

pub struct Round {
    pub devices: Vec<Device>,
    pub bound: u64,
}

impl Round {
    pub fn within_bound(&self) -> bool {
        let mut compared = self.devices.iter().filter(|device| device.compared).peekable();
        compared.peek().is_some()
            && compared.all(|device| device.lost == 0 && device.worst().max(device.open()) <= self.bound)
    }

    /// As JSON: sizes in bytes, nothing rounded.
    pub fn as_json(&self) -> Value {
        json!({
            "devices": self.devices.iter().map(device).collect::<Value>(),
            "bound": self.bound,
            "within_bound": self.within_bound(),
        })
    }
}

fn device(device: &Device) -> Value {
    let nvml = device.nvml.as_ref().map(|reading| {
        json!({
            "total": reading.total,
            "used": reading.used,
            "free": reading.free,
            "reserved": reading.reserved,
            // The file of a layer that answers in place of NVML.
            "layer": reading.layer,
        })
    });
    json!({
        "uuid": device.uuid,
        "name": device.name,
        "total": device.total,
        // null means now
        "time": device.at.map(format::time),
        "nvml": nvml,
        "processes": device.processes.iter().map(process).collect::<Value>(),
        "other_processes": device.other_processes,
        "others": device.others,
        "unknown": device.unknown,
        "newer_than_measurement": device.newer,
        "events_lost": device.lost,
        "compared": device.compared,
        "notes": device.notes,
    })
}

fn process(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "job": process.job,
        "ledger": process.balance,
        "held": process.held,
        "nvml_used": process.nvml_used,
        "driver": process.driver.map(|info| json!({ "total": info.total, "free": info.free })),
        "context_basis": process.context.map(|context| context.basis.name()),
        // null without a layer between library and driver
        "layer": process.layer,
        "differences": process.differences,
    })
}
