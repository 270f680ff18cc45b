//! The devices of a node, as NVML has them. Without NVML the journals tell the size of those that are used.

use std::collections::BTreeMap;
use std::time::Duration;

use super::followed_process::Device;
use crate::analysis::host::Host;
use crate::analysis::nvml;

/// How long NVML may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes by UUID.
#[derive(Default)]
pub struct Devices {
    pub total: BTreeMap<String, u64>,
    /// What all processes use. Empty if NVML does not answer.
    pub used: BTreeMap<String, u64>,
}

impl Devices {
    /// Asks about all devices of this machine, and about these: NVML finds MIG instances by their UUIDs alone.
    pub fn ask<'a>(known: impl Iterator<Item = &'a Device>) -> Devices {
        let known = known.filter(|device| !device.uuid.is_empty() && device.total > 0);
        let total: BTreeMap<String, u64> = known.map(|device| (device.uuid.clone(), device.total)).collect();
        let uuids: Vec<String> = total.keys().cloned().collect();
        let used = BTreeMap::new();
        let mut devices = Devices { total, used };
        for seen in nvml::ask(&Host::Machine, &uuids, PATIENCE).unwrap_or_default() {
            // A layer that answers in place of NVML tells of one job.
            let Some(reading) = seen.reading.ok().filter(|reading| reading.layer.is_none()) else {
                continue;
            };
            devices.total.insert(seen.uuid.clone(), reading.total);
            devices.used.insert(seen.uuid, reading.used);
        }
        devices
    }
}
