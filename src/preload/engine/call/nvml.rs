//! What is answered where a program asks the driver's management library about memory.
//!
//! Where a limit or a shared account is in force, a device is as large as the limit and used as the account says. Where
//! a layer below us shows the job less of the device than there is, it is as large as that, and used as our ledger says.
//! Everywhere else the library's own answers stand.

use crate::engine::Engine;
use crate::engine::start::{quota, running};
use crate::next::management::{self, Device, Process};
use base::cuda::MAX_DEVICES;
use base::identity;
use quota::View;
use quota::file::Holder;

/// Bytes.
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// What is to be answered of a device that has `total` and `free` by the library's own account; `None` lets that stand.
pub fn memory(device: Device, total: u64, free: u64) -> Option<Memory> {
    let view = view(device, total)?;
    let limit = view.limit?.min(total);
    Some(Memory {
        total: limit,
        free: limit.saturating_sub(view.used).min(free),
        used: view.used,
    })
}

/// The processes to tell of; `None` lets the library's own list stand.
pub fn processes(device: Device) -> Option<Vec<Process>> {
    // What is not limited has its total in the library, and is what the library says.
    let view = view(device, u64::MAX)?;
    let mut list = management::processes(device).unwrap_or_default();
    let here = identity::pid_namespace();
    let holders = || view.holders.iter().filter(|holder| holder.namespace == here);
    // The library's process ids may be those of another namespace, where ours mean nothing.
    if holders().next().is_some() && !holders().any(|holder| list.iter().any(|process| process.pid == holder.pid)) {
        list.clear();
    }
    for holder in holders() {
        match list.iter_mut().find(|process| process.pid == holder.pid) {
            Some(process) => process.used = holder.held,
            None => list.push(entry(holder)),
        }
    }
    Some(list)
}

fn entry(holder: &Holder) -> Process {
    /// As for a process on a whole device.
    const NO_INSTANCE: u32 = u32::MAX;
    Process {
        pid: holder.pid,
        used: holder.held,
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    }
}

fn view(device: Device, total: u64) -> Option<View> {
    // Nothing to know: not even which device it is.
    let quota = quota().filter(|quota| quota.is_in_force());
    if quota.is_none() && running().is_none() {
        return None;
    }
    if management::is_divided(device) {
        return None;
    }
    let uuid = management::uuid(device)?;
    quota
        .and_then(|quota| quota.view(uuid, total))
        .or_else(|| running()?.view_below(uuid, total))
}

impl Engine {
    /// A device of which the layer below shows less than its `total`.
    fn view_below(&self, uuid: [u8; 16], total: u64) -> Option<View> {
        let seen = (0..MAX_DEVICES as i16).filter(|&device| self.sightings.has(device));
        let (device, shown) = seen
            .filter_map(|device| Some((device, crate::engine::state::limits::describe(device)?)))
            .find(|(_, described)| described.uuid == uuid)
            .map(|(device, described)| (device, described.total))?;
        if shown >= total {
            return None;
        }
        let held = self.ledger.readings(device, None).reserved.current;
        Some(View {
            limit: Some(shown),
            used: held,
            holders: vec![Holder {
                pid: self.pid,
                namespace: identity::pid_namespace(),
                start_ticks: 0,
                held,
            }],
        })
    }
}
