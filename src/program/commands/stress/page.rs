//! The outcome of a run for people, and as JSON.

use std::io::{self, Write};

use crate::escaped;
use crate::render::format::{count, printable, size, strong, styled};
use crate::stress::baseline::{Baseline, Comparison, Device, PriceChange};

/// How many prices that changed are shown.
const SHOWN_PRICES: usize = 10;
/// The most characters of a line that a driver or a file wrote.
const MOST_CHARACTERS: usize = 2000;

pub fn print(run: &Baseline, as_json: bool) -> io::Result<()> {
    let (out, bold) = (&mut io::stdout().lock(), styled());
    if as_json {
        return escaped::pretty(out, run);
    }
    let driver = printable(run.driver.as_deref().unwrap_or("not known"), 100);
    let (major, minor) = (run.cuda_version / 1000, run.cuda_version % 1000 / 10);
    writeln!(out, "Driver {driver}, CUDA {major}.{minor}; seed {}", run.seed)?;
    for device in &run.devices {
        write_device(out, device, bold)?;
    }
    if let Some(comparison) = &run.against {
        write_comparison(out, comparison, bold)?;
    }
    writeln!(out, "\n{}", strong(&verdict(run), bold))
}

fn verdict(run: &Baseline) -> String {
    let turns = || run.devices.iter().flat_map(|device| &device.turns);
    let broke = turns().filter(|turn| turn.fault.is_some()).count();
    let never_compared = turns().all(|turn| turn.compared == 0) && turns().any(|turn| turn.not_compared > 0);
    match broke {
        1.. => format!("Broke: {broke} of {} turns.", turns().count()),
        0 if run.interrupted => "Interrupted. Nothing broke until then.".to_owned(),
        0 if never_compared => "Passed, but the device's figures were never compared: see above.".to_owned(),
        0 => "Passed: nothing broke.".to_owned(),
    }
}

fn write_device(out: &mut impl Write, device: &Device, bold: bool) -> io::Result<()> {
    let (name, uuid) = (printable(&device.name, 200), printable(&device.uuid, 100));
    let total = size(device.total_bytes);
    let heading = format!("device {}: {name}, {total} [{uuid}]", device.ordinal);
    writeln!(out, "\n{}", strong(&heading, bold))?;
    writeln!(out, "  A worker held at most {}.", size(device.memory_bytes))?;
    for turn in &device.turns {
        let [rounds, calls, blocks, refused] = [turn.rounds, turn.calls, turn.blocks, turn.refused].map(count);
        let [compared, rests] = [turn.compared, turn.compared + turn.not_compared].map(count);
        let read_back = size(turn.bytes_checked);
        let mut lines = vec![format!(
            "{rounds} rounds, {calls} calls, {blocks} blocks ({refused} refused), {read_back} read back, compared at \
             {compared} of {rests} rest points"
        )];
        lines.extend(turn.left_out.iter().map(|call| format!("not there: {call}")));
        let whys = turn.why_not_compared.iter();
        lines.extend(whys.map(|why| format!("not compared with the device: {why}")));
        if let Some(fault) = &turn.fault {
            lines.push(format!("broke in round {}: {}", turn.rounds, fault.words));
            lines.push(format!("again: {}", fault.again));
            lines.push(format!("journal: {}", fault.folder));
        }
        for line in lines {
            writeln!(out, "  {}: {}", turn.strategy, printable(&line, MOST_CHARACTERS))?;
        }
    }
    Ok(())
}

fn write_comparison(out: &mut impl Write, comparison: &Comparison, bold: bool) -> io::Result<()> {
    let passed = if comparison.baseline_passed {
        ""
    } else {
        ", which had not passed"
    };
    let heading = format!("Against the baseline of {}{passed}", printable(&comparison.made, 100));
    writeln!(out, "\n{}", strong(&heading, bold))?;
    for one in &comparison.differences {
        let line = format!("{}: {}, was {}", one.what.replace('_', " "), one.now, one.before);
        writeln!(out, "  {}", printable(&line, MOST_CHARACTERS))?;
    }
    if comparison.differences.is_empty() {
        writeln!(out, "  Driver, devices, idle memory and faults are as they were.")?;
    }
    let told = comparison.prices.iter().filter(|price| price.is_worth_telling());
    let told: Vec<&PriceChange> = told.collect();
    let [changed, all] = [told.len(), comparison.prices.len()].map(|number| count(number as u64));
    writeln!(
        out,
        "  {changed} of {all} prices changed by half or more; --json lists all."
    )?;
    for price in told.iter().take(SHOWN_PRICES) {
        let [was, now] = [price.before_p50_ns, price.now_p50_ns].map(|ns| ns as f64 / 1e3);
        writeln!(
            out,
            "  {}: {now:.1} us, was {was:.1} us",
            printable(&price.what, MOST_CHARACTERS)
        )?;
    }
    Ok(())
}
