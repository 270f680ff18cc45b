//! Reconciliation for people: for each device a table of who has how much of it, and how that is known.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Round;
use crate::analysis::measurements::{Balance, minus};
use crate::analysis::reconciliation::{Basis, Context, Differences};
use crate::analysis::side_by_side::{Device, Process};
use crate::commands::inspect::text::table;
use crate::render::format;
use crate::render::format::{difference, printable, size};

/// Titles of the table.
pub const PARTS: [&str; 4] = ["who", "what", "bytes", "known from"];

pub fn write(out: &mut impl Write, round: &Round, again: bool) -> io::Result<()> {
    let bold = format::bold();
    let strong = |text: &str| match bold {
        true => format!("\x1b[1m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    if again {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        writeln!(out, "{}", format::time(now.map_or(0, |now| now.as_nanos() as u64)))?;
    }
    for device in &round.devices {
        writeln!(out, "{}", strong(&heading(device)))?;
        table(out, &PARTS, &[2], rows(device))?;
        for note in &device.notes {
            writeln!(out, "  {}", printable(note, 400))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "{}", strong(&verdict(round)))?;
    if again {
        writeln!(out)?;
    }
    Ok(())
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
    let bound = size(round.bound);
    if !round.devices.iter().any(|device| device.compared) {
        "Nothing to compare with: no NVML, and no measurement in the journals".into()
    } else if round.within_bound() {
        format!("Unknown: at most {}, within the bound of {bound}", size(worst))
    } else {
        format!("Unknown: {} in one place, more than the bound of {bound}", size(worst))
    }
}

fn rows(device: &Device) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut outside = device.unknown;
    for process in &device.processes {
        let Process {
            pid,
            job,
            balance,
            differences,
            context,
            nvml_used,
            ..
        } = process;
        let who = format!("{pid} {}", printable(job, 24));
        rows.extend(process_rows(balance, differences, *context, *nvml_used, &who));
        outside = outside.saturating_sub(differences.unknown);
    }
    rows.extend(others_row(device.other_processes));
    if device.nvml.is_some() {
        rows.push(row(
            "the device",
            "unknown",
            difference(outside),
            "used, less all of the above",
        ));
    }
    rows
}

pub fn others_row(other_processes: Option<u64>) -> Option<Vec<String>> {
    Some(row("others", "other processes", size(other_processes?), "nvml"))
}

/// One process's bytes: what the ledger has, and what there is beyond it. What is nothing is left out, except for the
/// first and the last.
pub fn process_rows(
    balance: &Balance,
    differences: &Differences,
    context: Option<Context>,
    nvml_used: Option<u64>,
    who: &str,
) -> Vec<Vec<String>> {
    let rounded = minus(balance.allocated, balance.requested);
    let pools = minus(balance.reserved, balance.allocated).saturating_sub_unsigned(balance.free_inside);
    let basis = match context.map(|context| context.basis) {
        Some(Basis::Nvml) => "nvml, when the device was first used",
        Some(Basis::Device) => "the driver, when nobody else was there",
        Some(Basis::Alike) => "another process's context",
        None => "",
    };
    let unknown = match context {
        None if differences.unknown > 0 => "nothing tells what of it is a context",
        _ => "",
    };
    let parts = [
        ("requested", balance.requested as i64, "ledger"),
        ("rounding of requests", rounded, "ledger"),
        ("free inside segments", balance.free_inside as i64, "ledger"),
        ("driver's pools, padding", pools, "ledger"),
        ("context", differences.context as i64, basis),
        ("driver's rounding", differences.rounding as i64, "addresses, at most"),
        ("module code", differences.module_code as i64, "mapped files, at most"),
        ("managed, in host memory", differences.managed, "ledger, at most"),
        ("unknown", differences.unknown, unknown),
    ];
    let mut rows = Vec::new();
    for (what, bytes, known) in parts {
        if bytes != 0 || matches!(what, "requested" | "unknown") {
            rows.push(row("", what, difference(bytes), known));
        }
    }
    let all = nvml_used.map_or_else(|| "not told".into(), size);
    rows.insert(0, row(who, "in all", all, "nvml"));
    rows
}

fn row(who: &str, what: &str, bytes: String, known: &str) -> Vec<String> {
    vec![who.into(), what.into(), bytes, known.into()]
}
