//! The answers to a program that asks NVML about memory.
//!
//! If a limit or a shared account is in force, a device is as large as the limit, and used as the account says. If a
//! virtualisation layer shows the job less of a device than NVML does, the device is as large as that, and used as the
//! ledger says.
//! In all other cases NVML's own answers stand.

use crate::engine::Engine;
use crate::engine::process::{quota, running};
use crate::engine::state::limits::describe;
use crate::next;
use crate::next::nvml::{self, Device, Memory, Process};
use base::cancellation::Uncancelled;
use base::identity;
use quota::View;
use quota::seats::Holder;

/// The answer about a device of which NVML itself says `total` and `free`. `None` if NVML's answer stands.
pub fn memory(device: Device, total: u64, free: u64) -> Option<Memory> {
    let _uncancelled = Uncancelled::begin();
    let view = view(device, Some(total))?;
    let limit = view.limit?.min(total);
    Some(Memory {
        total: limit,
        free: limit.saturating_sub(view.used).min(free),
        used: view.used,
    })
}

/// The processes to list. `None` if NVML's own list stands.
pub fn processes(device: Device) -> Option<Vec<Process>> {
    /// The value of a process that uses a whole device, not a part of it (MIG).
    const NO_INSTANCE: u32 = u32::MAX;
    let _uncancelled = Uncancelled::begin();
    let view = view(device, nvml::total(device))?;
    let mut list = nvml::processes(device).unwrap_or_default();
    let here = identity::pid_namespace();
    let holders = || view.holders.iter().filter(|holder| holder.namespace == here);
    // NVML's process ids may be those of another namespace, in which our ids mean other processes.
    if holders().next().is_some() && !holders().any(|holder| list.iter().any(|process| process.pid == holder.pid)) {
        list.clear();
    }
    for holder in holders() {
        match list.iter_mut().find(|process| process.pid == holder.pid) {
            Some(process) => process.used = holder.held,
            // NVML lists a process as long as it has a context, which our books do not show.
            None if holder.held > 0 => list.push(Process {
                pid: holder.pid,
                used: holder.held,
                gpu_instance: NO_INSTANCE,
                compute_instance: NO_INSTANCE,
            }),
            None => {}
        }
    }
    Some(list)
}

/// `None` for `total`: NVML does not tell it.
fn view(device: Device, total: Option<u64>) -> Option<View> {
    // Without limits and without an engine there is nothing to correct, and NVML is not asked for the UUID.
    let quota = quota().filter(|quota| quota.is_in_force);
    // Without a layer the driver tells CUDA less of a device than NVML does: it keeps some for itself.
    if quota.is_none() && (running().is_none() || !next::shows_its_own_memory()) {
        return None;
    }
    if nvml::is_divided(device) {
        return None;
    }
    let uuid = nvml::uuid(device)?;
    quota
        .and_then(|quota| quota.view(uuid, total.unwrap_or(u64::MAX)))
        .or_else(|| running()?.view_of_layer(uuid, total?))
}

impl Engine {
    /// The view of a device of which a layer shows less than its `total`.
    fn view_of_layer(&self, uuid: [u8; 16], total: u64) -> Option<View> {
        let (device, shown) = self
            .state
            .measurements
            .used_devices()
            .filter_map(|device| Some((device, describe(device)?)))
            .find(|(_, described)| described.uuid == uuid)
            .map(|(device, described)| (device, described.total))?;
        if shown >= total {
            return None;
        }
        let held = self.state.reserved(device);
        Some(View {
            limit: Some(shown),
            used: held,
            holders: vec![Holder {
                pid: self.pid,
                namespace: identity::pid_namespace(),
                held,
            }],
        })
    }
}
