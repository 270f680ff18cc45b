//! Checks which memory and which processes bypassed the library during the trial of a command.

use std::collections::BTreeSet;

use base::api::Class;
use base::layers::known;

use super::probe::Device;
use super::report::Findings;
use super::trial::{Process, Trial};
use crate::analysis::job::Job;
use crate::analysis::names::{api_name, device_uuid, result_name};
use crate::render::format::{count, size, times};

/// Device memory beyond ledger and context that is no sign of a bypass, because code and the driver's buffers take
/// some.
const USUAL_BEYOND_CONTEXT_BYTES: u64 = 256 << 20;
/// Device memory beyond the ledger that is no sign of a bypass, if the size of a context is not known.
const USUAL_BEYOND_LEDGER_BYTES: u64 = 1 << 30;

/// By how much the contexts of two processes on one device may differ.
const CONTEXT_VARIATION_BYTES: u64 = 32 << 20;

/// CUDA's result codes.
const SUCCESS: i32 = 0;
const DEINITIALISED: i32 = 4;

pub fn check(told: &mut Findings, trial: &Trial, devices: &[Device]) {
    let mut layers = BTreeSet::new();
    for process in &trial.processes {
        told.look_at(process.place());
        for layer in process.seen.layers.iter().filter(|layer| layers.insert(*layer)) {
            let project = known(layer).map_or("a layer", |layer| layer.project);
            told.note(format!("the process has loaded {project}: {layer}"))
                .advise("The limits of that layer hold.")
                .of("layer");
        }
        if let Some(copied) = &process.seen.copied {
            told.warning(format!("{copied} is loaded twice in one process")).advise(
                "A second copy (dlmopen) has look-ups of its own, which LD_PRELOAD does not reach: what is asked of it \
                 is not seen.",
            );
        }
        if let Some(job) = &process.job {
            unknown_frees(told, job);
            beyond(told, job, process, devices);
        } else {
            without_journal(told, process, devices);
        }
    }
    told.look_at("");
    let is_known = trial.processes.iter().any(|process| !process.seen.held.is_empty());
    let reserves = |job: &Job| job.ledger.devices.values().any(|device| device.all.reserved.peak > 0);
    if !is_known && trial.jobs().any(|(_, job)| reserves(job)) {
        told.note(
            "NVML does not report these processes, so memory that bypassed the library cannot be found by its size",
        )
        .advise(
            "They lived too short for that, or NVML has other numbers for them, as in a container: run the doctor on \
                 the host, or in the host's process namespace (--pid=host).",
        );
    }
}

/// Checks a process that wrote no journal: did it load the driver?
fn without_journal(told: &mut Findings, process: &Process, devices: &[Device]) {
    let held: u64 = process.seen.held.values().sum();
    if process.seen.bare {
        let holds = match held {
            0 => String::new(),
            held => format!(" and holds {} of device memory", size(held)),
        };
        told.warning(format!("loaded the driver{holds}, and the library is not in it"))
            .advise(
                "Its LD_PRELOAD was cleared on the way (env -i, sudo, a launcher or container of its own), or the program \
                 is static or setuid: pass LD_PRELOAD on, or start it with vramshim run itself.",
            );
    } else if held > 0 {
        let contexts = process.seen.held.keys().filter_map(|uuid| context_bytes(devices, uuid));
        if held > contexts.sum::<u64>() + CONTEXT_VARIATION_BYTES {
            let held = size(held);
            told.warning(format!(
                "holds {held} of device memory and never asked the library for any"
            ))
            .advise(
                "It found the driver's functions by a way of its own (ELF tables, a second copy), or its code is \
                     large: nothing of it is in a journal.",
            );
        } else {
            told.note("has a context but did not ask for memory");
        }
    }
}

/// The size of a context on the device according to NVML, measured on the context of the probe.
fn context_bytes(devices: &[Device], uuid: &str) -> Option<u64> {
    let device = devices.iter().find(|device| device.uuid.as_deref() == Some(uuid));
    device?.context_bytes
}

/// Checks for frees of memory that was not allocated through the library.
fn unknown_frees(told: &mut Findings, job: &Job) {
    if job.header.unknown_frees > 0 {
        let times = times(job.header.unknown_frees);
        let found = format!("memory that was not allocated through the library was freed through it, {times}");
        let mut devices = job.ledger.devices.values();
        if devices.any(|device| device.classes.contains_key(&Class::Graph.number())) {
            told.note(found)
                .advise("The job uses CUDA graphs, and memory of a graph may be freed by an ordinary free.");
        } else {
            told.warning(found).advise(
                "Something allocates past the library and frees through it: a library with a copy of the driver's \
                 addresses from before, or one that reads ELF tables. That memory is not counted.",
            );
        }
    }
    for ((api, result), failure) in &job.ledger.failures {
        let name = api_name(*api);
        // When a process ends, the driver often shuts down before the process frees its memory. That is no bypass.
        if (name.contains("Free") || name.contains("Unregister")) && !matches!(*result, SUCCESS | DEINITIALISED) {
            let (result, times) = (result_name(*result), times(failure.count));
            told.warning(format!("{name} failed with {result}, {times}")).advise(
                "Neither the library nor the driver knows the address: it was freed before, or it is no address of \
                 device memory.",
            );
        }
    }
    if job.lost > 0 {
        let lost = count(job.lost);
        told.note(format!("{lost} events had no room in the journal of this trial"))
            .of("trial");
    }
}

/// Checks for device memory that NVML charges to a process and that neither its ledger nor a context explains.
fn beyond(told: &mut Findings, job: &Job, process: &Process, devices: &[Device]) {
    for (uuid, &held) in &process.seen.held {
        let context = context_bytes(devices, uuid);
        let ledgers = job.devices().into_iter().filter_map(|(_, entry, ledger)| {
            let same = device_uuid(&entry?.uuid).as_ref() == Some(uuid);
            ledger.filter(|_| same).map(|ledger| ledger.all.reserved.peak)
        });
        let reserved: u64 = ledgers.sum();
        let beyond = held.saturating_sub(reserved).saturating_sub(context.unwrap_or(0));
        let usual = match context {
            Some(_) => USUAL_BEYOND_CONTEXT_BYTES,
            None => USUAL_BEYOND_LEDGER_BYTES,
        };
        if beyond > usual {
            let context = context.map_or_else(|| "an unknown amount".into(), size);
            let [held, reserved, beyond] = [held, reserved, beyond].map(size);
            told.warning(format!(
                "NVML says that it holds {held} of {uuid}, the library knows of {reserved} and a context takes \
                 {context}: {beyond} came past the library"
            ))
            .advise(
                "The code of large libraries is part of it. The rest was allocated by calls that the library does not \
                 see.",
            );
        }
    }
}
