//! The reconciliation as text: a table for each device, which shows the bytes of each process and the evidence for
//! them.

use std::io::{self, Write};

use super::round::Round;
use crate::analysis::side_by_side::{Device, Process};
use crate::render::differences::{PARTS, others_row, process_rows, row};
use crate::render::format::{self, count, difference, printable, size, strong};
use crate::render::table::table;

pub fn write(out: &mut impl Write, round: &Round) -> io::Result<()> {
    let bold = format::styled();
    for device in &round.devices {
        writeln!(out, "{}", strong(&heading(device), bold))?;
        table(out, &PARTS, &[2], rows(device))?;
        for note in &device.notes {
            writeln!(out, "  {}", printable(note, 400))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "{}", strong(&verdict(round), bold))
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
