//! Checks the limit of each device, and whether the folder of the shared accounts can be used.

use std::io;
use std::os::fd::AsRawFd;

use base::locks::{Owner, WHOLE};
use base::text::shown;
use base::uuid::{parse_uuid, uuid_text};
use config::table::CONTEXT;
use journal::reader::plain;
use quota::Scope;
use quota::file::EXTENSION;
use quota::glimpse::glimpse;

use super::Setup;
use super::folder::usable;
use super::probe::Device;
use super::report::Findings;
use crate::render::format::size;

pub fn check_limits(told: &mut Findings, setup: &mut Setup) {
    let quota = &setup.config.quota;
    if quota.limits.is_empty() {
        return;
    }
    told.look_at(quota.from);
    let whom = match quota.scope {
        Scope::Process => "each process",
        Scope::Group => "all processes together",
    };
    for device in setup.devices() {
        let (ordinal, total) = (device.ordinal, device.total_memory);
        let (number, uuid) = names(device);
        let Some(limit) = quota.limits.of(number, &uuid, total) else {
            told.note(format!("device {ordinal} has no limit"));
            continue;
        };
        let text = format!("device {ordinal}: {} of {} for {whom}", size(limit), size(total));
        let context = device.context_bytes.unwrap_or(0);
        if limit > total {
            told.note(format!("{text}: more than there is, so it has no effect"));
        } else if limit <= context {
            told.problem(format!("{text}, and a context alone takes {}", size(context)))
                .advise("No memory is left for the job: set a higher limit.");
        } else if device.context_bytes.is_none() {
            let assumed = size(quota.assumed_context);
            told.note(format!(
                "{text}. NVML does not tell what a process here holds: its context counts as the device's used bytes grow \
                 when it is made, or else as {assumed} ({})",
                CONTEXT.name
            ))
            .advise("What the driver takes later, such as for code, is outside the limit, unless NVML can be used and the pod has the host's pids (--pid=host).");
        } else if device.host_pids {
            told.ok(format!(
                "{text}; NVML shows a process here by its pid on the host, so that its context counts"
            ));
        } else {
            told.ok(text);
        }
    }
    for name in quota.limits.names() {
        let is_there = setup.devices().iter().any(|device| {
            let (number, uuid) = names(device);
            name.means(number, &uuid)
        });
        if setup.driver.as_ref().is_some_and(|driver| driver.done) && !is_there {
            told.problem(format!("a limit for device {name}, which the job does not see"))
                .advise(
                    "vramshim run refuses it. Devices are numbered after CUDA_VISIBLE_DEVICES is applied; `nvidia-smi -L` \
                     lists UUIDs.",
                );
        }
    }
}

/// The number and the UUID by which a limit names the device.
fn names(device: &Device) -> (Option<u32>, String) {
    let uuid = device.uuid.as_deref().and_then(parse_uuid);
    (
        u32::try_from(device.ordinal).ok(),
        uuid.map_or_else(String::new, uuid_text),
    )
}

pub fn check_accounts(told: &mut Findings, setup: &mut Setup) {
    let Some(folder) = &setup.config.quota.accounts else {
        return;
    };
    told.look_at(shown(folder));
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let alone = "Without accounts a limit holds for each process alone; VRAMSHIM_ACCOUNTS chooses another folder.";
    let Some(existing) = usable(told, &absolute, alone) else {
        return;
    };
    let locked = tempfile::tempfile_in(existing).map(|file| {
        let fd = file.as_raw_fd();
        Owner::of(fd).lock(fd, WHOLE)
    });
    if let Ok(Err(errno)) = locked {
        let error = io::Error::from_raw_os_error(errno);
        told.problem(format!("record locks do not work there ({error})"))
            .advise(alone);
        return;
    }
    let files = plain::named_in(folder, EXTENSION).into_iter().flatten();
    let before = told.list.len();
    for file in files.map(|entry| entry.path()) {
        if let Err(why) = glimpse(&file) {
            let advice = "The next process that needs the account replaces the file; processes that use the old one are then \
                          not counted.";
            told.warning(why.to_string()).advise(advice).at(shown(&file));
        }
    }
    if told.list.len() == before {
        told.ok("accounts can be kept here");
    }
}
