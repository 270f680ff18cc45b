//! The reconciliation as text: a table for each device, which shows the bytes of each process and the evidence for
//! them.

use base::process::job_name_of_process;

use super::round::Round;
use crate::analysis::measurements::minus;
use crate::analysis::reconciliation::Basis;
use crate::analysis::side_by_side::{Device, Process};
use crate::render::format::{self, count, difference, printable, size, strong};
use crate::render::text_or_json::Page;

pub fn show(page: &mut Page, round: &Round) {
    for device in &round.devices {
        page.line(strong(&heading(device)));
        page.table("who|what|>bytes|known from", rows(device));
        for note in &device.notes {
            page.line(format!("  {}", printable(note, 400)));
        }
        page.line("");
    }
    page.line(strong(&verdict(round)));
}

fn heading(device: &Device) -> String {
    let uuid = device.uuid.as_deref().unwrap_or("a device without a UUID");
    let what = format!("{uuid}  {}, {}", printable(&device.name, 64), size(device.total));
    let when = device.at.map_or_else(|| "now".to_owned(), format::time);
    match &device.nvml {
        Some(reading) if reading.reserved > 0 => format!(
            "{what}: {} used, and {} kept by the driver for itself, says NVML {when}",
            size(reading.used),
            size(reading.reserved)
        ),
        Some(reading) => format!("{what}: {} used, says NVML {when}", size(reading.used)),
        None => format!("{what}: as of {when}"),
    }
}

fn verdict(round: &Round) -> String {
    let worst = round.devices.iter().map(Device::worst).max().unwrap_or(0);
    let newer = round.devices.iter().map(Device::open).max().unwrap_or(0);
    let lost: u64 = round.devices.iter().map(|device| device.lost).sum();
    let bound = size(round.bound);
    if !round.devices.iter().any(|device| device.compared) {
        "Nothing to compare with: NVML cannot be asked, and the journals have no measurement".into()
    } else if worst <= round.bound && newer > round.bound {
        format!(
            "Not known: {} were obtained after the last measurement, more than the bound of {bound}; until then at most \
             {} were unknown",
            size(newer),
            size(worst)
        )
    } else if worst <= round.bound && lost > 0 {
        format!(
            "Not known: {} events of the journals were lost or damaged; in what is left at most {} are unknown",
            count(lost),
            size(worst)
        )
    } else if round.within_bound() {
        format!("Unknown: at most {}, within the bound of {bound}", size(worst))
    } else {
        format!("Unknown: {} in one place, more than the bound of {bound}", size(worst))
    }
}

fn rows(device: &Device) -> Vec<Vec<String>> {
    let mut rows: Vec<_> = device.processes.iter().flat_map(process_rows).collect();
    if device.others.is_empty() {
        let others = device.other_processes.map(size);
        rows.extend(others.map(|bytes| row("others", "other processes", bytes, "nvml")));
    }
    rows.extend(device.others.iter().map(|other| {
        let job = job_name_of_process(other.pid).unwrap_or_default();
        let who = format!("{} {}", other.pid, printable(&job, 24));
        row(
            &who,
            "other process",
            other.used.map_or_else(|| "not known".to_owned(), size),
            "nvml",
        )
    }));
    if device.nvml.is_some() {
        let unknown = device.processes.iter().map(|process| process.differences.unknown);
        let outside = unknown.fold(device.unknown, i64::saturating_sub);
        rows.push(row(
            "the device",
            "unknown",
            difference(outside),
            "used, less all of the above",
        ));
    }
    rows
}

/// The rows of one process: the bytes of the ledger, and the parts of the difference to NVML. A row with 0 bytes is
/// left out, unless it is live or unknown.
fn process_rows(process: &Process) -> Vec<Vec<String>> {
    let Process {
        pid,
        job,
        balance,
        held,
        differences,
        context,
        nvml_used,
        ..
    } = process;
    let who = format!("{pid} {}", printable(job, 24));
    let by = ["ledger", "ledger, and PyTorch of its cache"][usize::from(held.pytorch.is_some())];
    let holds = match (held.live, held.cached) {
        (Some(live), Some(cached)) => [("live", live as i64, by), ("cached", cached as i64, by)],
        _ => {
            let why = held.not_known.as_deref().unwrap_or_default();
            [("live or cached", held.reserved as i64, why), ("cached", 0, "")]
        }
    };
    // The process itself knew of more or less when it was measured.
    let unrecorded = minus(balance.reserved, balance.recorded);
    let basis = match context.map(|context| context.basis) {
        Some(Basis::Nvml) => "nvml",
        Some(Basis::Device) => "the driver; nvml lists no older process",
        Some(Basis::DeviceOrOthers) => "the driver; nvml was not asked",
        Some(Basis::Alike) => "another process's context",
        None => "",
    };
    let what = match context.map(|context| context.basis) {
        Some(Basis::DeviceOrOthers) => "context, or of others",
        _ => "context",
    };
    let unknown = match context {
        None if differences.unknown > 0 => "no evidence of how much of it is a context",
        _ => "",
    };
    let parts = [
        ("in no record", unrecorded, "the measurement, less the records"),
        (what, differences.context as i64, basis),
        ("driver's rounding", differences.rounding as i64, "addresses, at most"),
        ("module code", differences.module_code as i64, "mapped files, at most"),
        ("managed, in host memory", differences.managed, "ledger, at most"),
        ("unknown", differences.unknown, unknown),
    ];
    let mut rows = Vec::new();
    for (what, bytes, known) in holds.into_iter().chain(parts) {
        if bytes != 0 || matches!(what, "live" | "unknown") {
            rows.push(row("", what, difference(bytes), known));
        }
    }
    let all = nvml_used.map_or_else(|| "not reported".into(), size);
    rows.insert(0, row(&who, "in all", all, "nvml"));
    rows
}

fn row(who: &str, what: &str, bytes: String, known: &str) -> Vec<String> {
    vec![who.into(), what.into(), bytes, known.into()]
}
