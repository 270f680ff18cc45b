//! The outcome of a run for people, and as JSON.

use std::io::{self, Write};

use serde::Serialize;

use crate::escaped;
use crate::render::format::{count, printable, size, strong};
use crate::render::table::table;
use crate::stress::baseline::{Baseline, Comparison, Device, PriceChange};
use crate::stress::outcome::Outcome;

/// How many prices that changed are shown.
const SHOWN_PRICES: usize = 10;
/// The most characters of a line that a driver or a file wrote.
const MOST_CHARACTERS: usize = 2000;

#[derive(Serialize)]
pub struct Page {
    #[serde(flatten)]
    pub run: Baseline,
    pub against: Option<Comparison>,
}

impl Page {
    pub fn json(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        escaped::pretty(&mut out, self)?;
        out.flush()
    }

    pub fn text(&self, out: &mut impl Write, bold: bool) -> io::Result<()> {
        let run = &self.run;
        let driver = printable(run.driver.as_deref().unwrap_or("not known"), 100);
        let (major, minor) = (run.cuda_version / 1000, run.cuda_version % 1000 / 10);
        writeln!(out, "Driver {driver}, CUDA {major}.{minor}; seed {}", run.seed)?;
        for device in &run.devices {
            write_device(out, device, bold)?;
        }
        if let Some(comparison) = &self.against {
            write_comparison(out, comparison, bold)?;
        }
        writeln!(out, "\n{}", strong(&self.verdict(), bold))?;
        out.flush()
    }

    fn verdict(&self) -> String {
        let turns = || self.run.devices.iter().flat_map(|device| &device.turns);
        let broke = turns().filter(|turn| turn.fault.is_some()).count();
        let never_compared = turns().all(|turn| turn.compared == 0) && turns().any(|turn| turn.not_compared > 0);
        match broke {
            1.. => format!("Broke: {broke} of {} turns.", turns().count()),
            0 if self.run.interrupted => "Interrupted. Nothing broke until then.".to_owned(),
            0 if never_compared => "Passed, but the device's figures were never compared: see above.".to_owned(),
            0 => "Passed: nothing broke.".to_owned(),
        }
    }
}

fn write_device(out: &mut impl Write, device: &Device, bold: bool) -> io::Result<()> {
    let (name, uuid) = (printable(&device.name, 200), printable(&device.uuid, 100));
    let heading = format!(
        "device {}: {name}, {} [{uuid}]",
        device.ordinal,
        size(device.total_bytes)
    );
    writeln!(out, "\n{}", strong(&heading, bold))?;
    writeln!(out, "  A worker held at most {}.", size(device.memory_bytes))?;
    let titles = [
        "strategy",
        "rounds",
        "calls",
        "blocks",
        "read back",
        "compared",
        "refused",
        "",
    ];
    let cells = |turn: &Outcome| {
        let figures = [turn.rounds, turn.calls, turn.blocks].map(count);
        let compared = format!(
            "{} of {}",
            count(turn.compared),
            count(turn.compared + turn.not_compared)
        );
        let verdict = if turn.fault.is_some() { "broke" } else { "ok" };
        let last = [
            size(turn.bytes_checked),
            compared,
            count(turn.refused),
            verdict.to_owned(),
        ];
        [vec![turn.strategy.clone()], figures.to_vec(), last.to_vec()].concat()
    };
    table(
        out,
        &titles,
        &[1, 2, 3, 4, 5, 6],
        device.turns.iter().map(cells).collect(),
    )?;
    for turn in &device.turns {
        let mut lines: Vec<String> = Vec::new();
        if !turn.left_out.is_empty() {
            lines.push(format!("not there: {}", turn.left_out.join(", ")));
        }
        lines.extend(
            turn.why_not_compared
                .iter()
                .map(|why| format!("not compared with the device: {why}")),
        );
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
    let told: Vec<&PriceChange> = comparison
        .prices
        .iter()
        .filter(|price| price.is_worth_telling())
        .collect();
    let [changed, all] = [told.len(), comparison.prices.len()].map(|number| count(number as u64));
    writeln!(
        out,
        "  {changed} of {all} prices changed by half or more; --json lists all."
    )?;
    if told.is_empty() {
        return Ok(());
    }
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let cells = |price: &&PriceChange| {
        vec![
            printable(&price.call, 100),
            printable(&price.size, 100),
            price.strategy.clone(),
            us(price.before_p50_ns),
            us(price.now_p50_ns),
            format!("{:.2}", price.ratio),
        ]
    };
    let rows = told.iter().take(SHOWN_PRICES).map(cells).collect();
    table(
        out,
        &["call", "size", "strategy", "was", "now", "ratio"],
        &[3, 4, 5],
        rows,
    )
}
