//! The devices of a node, as NVML has them. Without NVML the journals tell the size of those that are used.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::folders::in_turns;
use super::followed_process::Process;
use crate::analysis::host::Host;
use crate::analysis::names::device_uuid;
use crate::analysis::nvml;

/// How long NVML may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// NVML is not asked again within this time: a process must begin to use it for each question.
const FRESH: Duration = Duration::from_secs(1);
/// The most devices that journals can tell of. No machine has so many, and any user can write a UUID into a journal.
const MOST: usize = 256;

/// Bytes by UUID.
#[derive(Default)]
pub struct Devices {
    pub total: BTreeMap<String, u64>,
    /// What all processes use. Empty if NVML does not answer.
    pub used: BTreeMap<String, u64>,
    /// The totals that NVML told. They hold also if it does not answer later: a journal can say anything.
    told: BTreeMap<String, u64>,
    asked: Option<Instant>,
}

impl Devices {
    /// Asks about all devices of this machine, and about those of these processes: NVML finds MIG instances by their UUIDs alone.
    pub fn collect<'a>(&mut self, processes: impl Iterator<Item = &'a Process>) {
        if self.asked.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let devices = processes.flat_map(|process| process.devices.iter().map(|device| (&process.who, device)));
        let claims = devices.filter_map(|(who, device)| Some((who, (device_uuid(&device.uuid)?, device.total_memory))));
        // Of two totals nobody knows which one is true.
        let mut claimed: BTreeMap<String, Option<u64>> = BTreeMap::new();
        for (uuid, told) in in_turns(claims.filter(|(_, (_, total))| *total > 0)) {
            let has_room = claimed.len() < MOST;
            match claimed.get_mut(&uuid) {
                Some(total) => *total = total.filter(|total| *total == told),
                None if has_room => drop(claimed.insert(uuid, Some(told))),
                None => {}
            }
        }
        let uuids: Vec<String> = claimed.keys().cloned().collect();
        let answer = nvml::ask(&Host::Machine, &uuids, PATIENCE);
        self.used.clear();
        if answer.is_ok() {
            self.told.clear();
        }
        for seen in answer.unwrap_or_default() {
            // A layer that answers in place of NVML tells of one job.
            let Some(reading) = seen.reading.ok().filter(|reading| reading.layer.is_none()) else {
                continue;
            };
            self.told.insert(seen.uuid.clone(), reading.total);
            self.used.insert(seen.uuid, reading.used);
        }
        self.asked = Some(Instant::now());
        self.total = (claimed.into_iter())
            .filter_map(|(uuid, total)| Some((uuid, total?)))
            .collect();
        self.total.extend(self.told.clone());
    }
}
