//! Checks the limit of each device, and whether the folder of the shared accounts can be used.

use std::path::Path;

use base::text::shown;
use base::uuid::{parse_uuid, uuid_text};
use config::Config;
use quota::file::{EXTENSION, SharedAccount};
use quota::{Scope, Settings};

use super::folder::try_nearest;
use super::probe::{Device, Driver};
use super::report::Findings;
use crate::render::format::size;

const LIMIT: &str = "limit";
const ACCOUNTS: &str = "accounts";

pub fn check(findings: &mut Findings, config: &Config, driver: Option<&Driver>) {
    let quota = &config.quota;
    if !quota.limits.is_empty() {
        limits(findings, quota, driver);
    }
    if let Some(folder) = &quota.accounts {
        accounts(findings, folder);
    }
}

fn limits(findings: &mut Findings, quota: &Settings, driver: Option<&Driver>) {
    let devices = driver.map_or(&[][..], |driver| &driver.devices);
    let whom = match quota.scope {
        Scope::Process => "each process",
        Scope::Group => "all processes together",
    };
    for device in devices {
        let (number, uuid) = names(device);
        let total = device.total_memory;
        let Some(limit) = quota.limits.of(number, &uuid, total) else {
            findings.note(LIMIT, format!("device {} has no limit", device.ordinal), "", quota.from);
            continue;
        };
        let text = format!(
            "device {}: {} of {} for {whom}",
            device.ordinal,
            size(limit),
            size(total)
        );
        let context = device.context_bytes.unwrap_or(0);
        if limit > total {
            findings.note(
                LIMIT,
                format!("{text}: more than there is, so it has no effect"),
                "",
                quota.from,
            );
        } else if limit <= context {
            let advice = "No memory is left for the job: set a higher limit.";
            findings.problem(
                LIMIT,
                format!("{text}, and a context alone takes {}", size(context)),
                advice,
                quota.from,
            );
        } else {
            findings.ok(LIMIT, text, quota.from);
        }
    }
    for name in quota.limits.names() {
        let is_there = devices.iter().any(|device| {
            let (number, uuid) = names(device);
            name.means(number, &uuid)
        });
        if driver.is_some() && !is_there {
            findings.problem(
                LIMIT,
                format!("a limit for device {name}, which the job does not see"),
                "vramshim run refuses it. Devices are numbered after CUDA_VISIBLE_DEVICES is applied; `nvidia-smi -L` \
                     lists UUIDs.",
                quota.from,
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

fn accounts(findings: &mut Findings, folder: &Path) {
    let place = shown(folder);
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let alone = "Without accounts a limit holds for each process alone; VRAMSHIM_ACCOUNTS chooses another folder.";
    let Some((_, trial)) = try_nearest(findings, ACCOUNTS, &absolute, &place, alone) else {
        return;
    };
    if let Some(error) = trial.no_locks {
        let found = format!("record locks do not work there ({error})");
        findings.problem(ACCOUNTS, found, alone, place);
        return;
    }
    let files = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut found = false;
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == EXTENSION)) {
        found = true;
        let place = shown(&file);
        match SharedAccount::open_path(&file) {
            Ok(account) => {
                // First the holders: looking for them takes the bytes of dead processes off the account.
                let processes = account.holders().len();
                let used = size(account.account().used());
                findings.ok(ACCOUNTS, format!("{used} used by {processes} processes"), place);
            }
            Err(why) => {
                let advice = "The next process that needs the account replaces the file; processes that use the old one \
                              are then not counted.";
                findings.warning(ACCOUNTS, why.to_string(), advice, place);
            }
        }
    }
    if !found {
        findings.ok(ACCOUNTS, "accounts can be kept here; there are none yet", place);
    }
}
