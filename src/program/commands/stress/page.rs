//! The outcome of a run for people, and as JSON.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::escaped;
use crate::render::format::{count, printable, shown, size, strong};
use crate::render::table::table;
use crate::stress::against::{Comparison, Difference, PriceChange};
use crate::stress::baseline::{Baseline, Device, Turn};

/// How many prices that changed are shown.
const SHOWN_PRICES: usize = 10;
/// The most characters of a line of a fault.
const MOST_CHARACTERS: usize = 2000;

#[derive(Serialize)]
pub struct Page<'a> {
    #[serde(flatten)]
    pub run: &'a Baseline,
    pub against: Option<&'a Comparison>,
    /// The file with the baseline; `null` if it was not kept in a file.
    #[serde(rename = "baseline_file")]
    pub kept: Option<&'a Path>,
}

impl Page<'_> {
    pub fn json(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        escaped::pretty(&mut out, self)?;
        out.flush()
    }

    pub fn text(&self, out: &mut impl Write, bold: bool) -> io::Result<()> {
        let run = self.run;
        let driver = run.driver.as_deref().unwrap_or("not known");
        let (major, minor) = (run.cuda_version / 1000, run.cuda_version % 1000 / 10);
        writeln!(
            out,
            "Driver {}, CUDA {major}.{minor}; seed {}",
            printable(driver, 100),
            run.seed
        )?;
        for device in &run.devices {
            write_device(out, device, bold)?;
        }
        if let Some(comparison) = self.against {
            write_comparison(out, comparison, bold)?;
        }
        writeln!(out, "\n{}", strong(&self.verdict(), bold))?;
        if let Some(kept) = self.kept {
            writeln!(out, "Baseline: {}", shown(kept))?;
        }
        out.flush()
    }

    fn verdict(&self) -> String {
        let turns = || self.run.devices.iter().flat_map(|device| &device.turns);
        let broke = turns().filter(|turn| turn.fault.is_some()).count();
        let compared: u64 = turns().map(|turn| turn.compared).sum();
        let not_compared: u64 = turns().map(|turn| turn.not_compared).sum();
        let slower = self.against.is_some_and(Comparison::fails);
        match (broke, self.run.interrupted) {
            (1.., _) => format!("Broke: {broke} of {} turns.", turns().count()),
            (0, true) => "Interrupted. Nothing broke until then.".to_owned(),
            (0, false) if slower => "Nothing broke, but calls cost more than --slower accepts.".to_owned(),
            (0, false) if compared == 0 && not_compared > 0 => {
                "Passed, but the device's figures were never compared: see above.".to_owned()
            }
            (0, false) => "Passed: nothing broke.".to_owned(),
        }
    }
}

fn write_device(out: &mut impl Write, device: &Device, bold: bool) -> io::Result<()> {
    let idle = device.free_at_idle_bytes.map_or_else(|| "not known".to_owned(), size);
    let heading = format!(
        "device {}: {}, {}, {idle} free at idle [{}]",
        device.ordinal,
        printable(&device.name, 200),
        size(device.total_bytes),
        printable(&device.uuid, 100)
    );
    writeln!(out, "\n{}", strong(&heading, bold))?;
    writeln!(out, "  A worker held at most {}.", size(device.memory_bytes))?;
    let titles = ["strategy", "rounds", "calls", "blocks", "read back", "compared", ""];
    let cells = |turn: &Turn| {
        let verdict = if turn.fault.is_some() { "broke" } else { "ok" };
        vec![
            turn.strategy.clone(),
            count(turn.rounds),
            count(turn.counts.calls),
            count(turn.counts.blocks),
            size(turn.counts.bytes_checked),
            match turn.not_compared {
                0 => count(turn.compared),
                not => format!("{} of {}", count(turn.compared), count(turn.compared + not)),
            },
            verdict.to_owned(),
        ]
    };
    table(out, &titles, &[1, 2, 3, 4, 5], device.turns.iter().map(cells).collect())?;
    for turn in &device.turns {
        if !turn.left_out.is_empty() {
            writeln!(out, "  {}: not there: {}", turn.strategy, turn.left_out.join(", "))?;
        }
        if turn.counts.refused > 0 {
            let times = count(turn.counts.refused);
            writeln!(
                out,
                "  {}: {times} requests were refused, because the device was full",
                turn.strategy
            )?;
        }
        for why in &turn.why_not_compared {
            let why = printable(why, MOST_CHARACTERS);
            writeln!(out, "  {}: not compared with the device: {why}", turn.strategy)?;
        }
    }
    for turn in &device.turns {
        let Some(told) = &turn.fault else { continue };
        let heading = format!("{} broke in round {}", turn.strategy, told.round);
        writeln!(out, "\n  {}", strong(&heading, bold))?;
        writeln!(out, "    {}", printable(&told.fault.words, MOST_CHARACTERS))?;
        writeln!(out, "    again:   {}", printable(&told.again, MOST_CHARACTERS))?;
        writeln!(out, "    journal: {}", printable(&told.folder, MOST_CHARACTERS))?;
    }
    Ok(())
}

fn write_comparison(out: &mut impl Write, comparison: &Comparison, bold: bool) -> io::Result<()> {
    let heading = format!("Against the baseline of {}", printable(&comparison.made, 100));
    writeln!(out, "\n{}", strong(&heading, bold))?;
    if !comparison.baseline_passed {
        writeln!(out, "  The run of the baseline had not passed.")?;
    }
    let line = |one: &Difference| {
        let device = one
            .device
            .as_ref()
            .map_or_else(String::new, |device| format!(" of {device}"));
        printable(
            &format!("{}{device}: {}, was {}", one.what.words(), one.now, one.before),
            MOST_CHARACTERS,
        )
    };
    for difference in &comparison.differences {
        writeln!(out, "  {}", line(difference))?;
    }
    if comparison.differences.is_empty() {
        writeln!(out, "  Driver, devices, idle memory and faults are as they were.")?;
    }
    writeln!(out, "  {}.", comparison.prices_in_words())?;
    let told: Vec<&PriceChange> = comparison
        .prices
        .iter()
        .filter(|price| price.is_worth_telling())
        .collect();
    if told.is_empty() {
        return Ok(());
    }
    let titles = ["call", "size", "strategy", "was", "now", "ratio", ""];
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let cells = |price: &&PriceChange| {
        vec![
            printable(&price.call, 100),
            printable(&price.size, 100),
            price.strategy.clone(),
            us(price.before_p50_ns),
            us(price.now_p50_ns),
            format!("{:.2}", price.ratio),
            if price.fails {
                "too slow".to_owned()
            } else {
                String::new()
            },
        ]
    };
    let rows = told.iter().take(SHOWN_PRICES).map(cells).collect();
    table(out, &titles, &[3, 4, 5], rows)?;
    if told.len() > SHOWN_PRICES {
        writeln!(out, "  {} more: --json lists all.", told.len() - SHOWN_PRICES)?;
    }
    Ok(())
}
