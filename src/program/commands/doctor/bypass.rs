//! Checks which memory and which processes bypassed the library during the trial of a command.

use std::collections::BTreeMap;
use std::path::Path;

use base::api::Class;

use super::layers;
use super::probe::Driver;
use super::report::Findings;
use super::trial::{Seen, Trial};
use crate::analysis::job::Job;
use crate::analysis::names;
use crate::analysis::names::{api_name, device_uuid};
use crate::render::format::{self, count, size};

/// Device memory beyond ledger and context that is no sign of a bypass, because code and the driver's buffers take
/// some.
const USUAL_BEYOND_CONTEXT_BYTES: u64 = 256 << 20;
/// Device memory beyond the ledger that is no sign of a bypass, if the size of a context is not known.
const USUAL_BEYOND_LEDGER_BYTES: u64 = 1 << 30;

/// By how much the contexts of two processes on one device may differ.
const CONTEXT_VARIATION_BYTES: u64 = 32 << 20;

pub fn check(findings: &mut Findings, trial: &Trial, driver: Option<&Driver>) {
    in_the_process(findings, trial);
    without_journal(findings, trial, driver);
    for job in &trial.jobs {
        unknown_frees(findings, job);
        beyond(findings, job, trial.seen.get(&job.header.pid), driver);
    }
    let known = trial.seen.values().any(|seen| !seen.holds.is_empty());
    let reserves = |job: &Job| job.ledger.devices.values().any(|device| device.all.reserved.peak > 0);
    if !known && trial.jobs.iter().any(reserves) {
        findings.note(
            "bypass",
            "NVML does not report these processes, so memory that bypassed the library cannot be found by its size",
            "They lived too short for that, or NVML has other numbers for them, as in a container: run the doctor on the host, \
             or in the host's process namespace (--pid=host).", "");
    }
}

/// CUDA's result codes.
const SUCCESS: i32 = 0;
const DEINITIALISED: i32 = 4;

/// The text by which a finding names a process.
pub fn process(number: u32, command: &str) -> String {
    format!("process {number}: {}", format::printable(command, 80))
}

/// Adds findings about drivers and layers that the processes had mapped.
fn in_the_process(findings: &mut Findings, trial: &Trial) {
    let mut layers: BTreeMap<&String, u32> = BTreeMap::new();
    for (number, seen) in &trial.seen {
        for layer in &seen.layers {
            layers.entry(layer).or_insert(*number);
        }
        if let Some(copied) = &seen.copied {
            findings.warning(
                "bypass",
                format!("{copied} is loaded twice in one process"),
                "A second copy (dlmopen) has look-ups of its own, which LD_PRELOAD does not reach: what is asked of \
                     it is not seen.",
                process(*number, &seen.command),
            );
        }
    }
    for (layer, number) in layers {
        let project = layers::project(Path::new(layer)).unwrap_or("a layer");
        findings.note(
            "layer",
            format!("the process has loaded {project}: {layer}"),
            "The limits of that layer hold.",
            process(number, &trial.seen[&number].command),
        );
    }
}

/// Checks for processes that loaded the driver but wrote no journal.
fn without_journal(findings: &mut Findings, trial: &Trial, driver: Option<&Driver>) {
    let has_journal = |number: &u32| trial.jobs.iter().any(|job| job.header.pid == *number);
    for (number, seen) in trial.seen.iter().filter(|(number, _)| !has_journal(number)) {
        let held: u64 = seen.holds.values().sum();
        let holds = match held {
            0 => String::new(),
            held => format!(" and holds {} of device memory", size(held)),
        };
        let place = process(*number, &seen.command);
        if seen.bare {
            findings.warning(
                "bypass",
                format!("loaded the driver{holds}, and the library is not in it"),
                "Its LD_PRELOAD was cleared on the way (env -i, sudo, a launcher or container of its own), or the \
                     program is static or setuid: pass LD_PRELOAD on, or start it with vramshim run itself.",
                place,
            );
        } else if held > 0 {
            let contexts = seen.holds.keys().filter_map(|uuid| context_bytes(driver, uuid));
            if held > contexts.sum::<u64>() + CONTEXT_VARIATION_BYTES {
                findings.warning(
                    "bypass",
                    format!(
                        "holds {} of device memory and never asked the library for any",
                        size(held)
                    ),
                    "It found the driver's functions by a way of its own (ELF tables, a second copy), or its code is \
                         large: nothing of it is in a journal.",
                    place,
                )
            } else {
                findings.note("bypass", "has a context but did not ask for memory", "", place)
            }
        }
    }
}

/// The size of a context on the device according to NVML, measured on the context of the probe.
fn context_bytes(driver: Option<&Driver>, uuid: &str) -> Option<u64> {
    let device = driver?
        .devices
        .iter()
        .find(|device| device.uuid.as_deref() == Some(uuid));
    device?.context_bytes
}

/// Checks for frees of memory that was not allocated through the library.
fn unknown_frees(findings: &mut Findings, job: &Job) {
    let place = process(job.header.pid, &job.header.command_line.join(" "));
    if job.header.unknown_frees > 0 {
        let graphs = job
            .ledger
            .devices
            .values()
            .any(|device| device.classes.contains_key(&Class::Graph.number()));
        let found = format!(
            "memory that was not allocated through the library was freed through it, {}",
            format::times(job.header.unknown_frees)
        );
        if graphs {
            findings.note(
                "bypass",
                found,
                "The job uses CUDA graphs, and memory of a graph may be freed by an ordinary free.",
                place.clone(),
            )
        } else {
            findings.warning(
                "bypass",
                found,
                "Something allocates past the library and frees through it: a library with a copy of the driver's \
                     addresses from before, or one that reads ELF tables. That memory is not counted.",
                place.clone(),
            )
        }
    }
    let failed = job.ledger.failures.iter().filter(|((api, result), _)| {
        let name = api_name(*api);
        // When a process ends, the driver often shuts down before the process frees its memory. That is no bypass.
        (name.contains("Free") || name.contains("Unregister")) && !matches!(*result, SUCCESS | DEINITIALISED)
    });
    for ((api, result), failure) in failed {
        findings.warning(
                "bypass",
                format!("{} failed with {}, {}", api_name(*api), names::result_name(*result), format::times(failure.count)),
                "Neither the library nor the driver knows the address: it was freed before, or it is no address of device memory.", place.clone());
    }
    if job.lost > 0 {
        findings.note(
            "trial",
            format!("{} events had no room in the journal of this trial", count(job.lost)),
            "",
            place,
        );
    }
}

/// Checks for device memory that NVML charges to a process and that neither its ledger nor a context explains.
fn beyond(findings: &mut Findings, job: &Job, seen: Option<&Seen>, driver: Option<&Driver>) {
    let Some(seen) = seen else { return };
    for (uuid, &held) in &seen.holds {
        let context = context_bytes(driver, uuid);
        let ledgers = job.devices().into_iter().filter_map(|(_, entry, ledger)| {
            let same = device_uuid(&entry?.uuid).as_ref() == Some(uuid);
            ledger.filter(|_| same).map(|ledger| ledger.all.reserved.peak)
        });
        let reserved: u64 = ledgers.sum();
        let beyond = held.saturating_sub(reserved).saturating_sub(context.unwrap_or(0));
        let usual = if context.is_some() {
            USUAL_BEYOND_CONTEXT_BYTES
        } else {
            USUAL_BEYOND_LEDGER_BYTES
        };
        if beyond > usual {
            findings.warning(
                    "bypass",
                    format!(
                        "NVML says that it holds {} of {uuid}, the library knows of {} and a context takes {}: {} came \
                         past the library",
                        size(held),
                        size(reserved),
                        context.map_or_else(|| "an unknown amount".into(), size),
                        size(beyond)
                    ),
                    "The code of large libraries is part of it. The rest was allocated by calls that the library does not see.", process(job.header.pid, &seen.command));
        }
    }
}
