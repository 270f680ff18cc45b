//! The text of `replay`: tables, and the recommendation.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use prices::Bill;

use super::{Played, Row};
use crate::render::format;
use crate::replay::Trace;

pub fn print(out: &mut impl Write, played: &Played) -> io::Result<()> {
    let (trace, setup) = (played.trace, played.setup);
    writeln!(
        out,
        "{}: {}, peak live {}{}, on a device of {}",
        played.name,
        match trace.requests.len() {
            1 => "1 request".to_owned(),
            several => format!("{} requests and frees", format::count(several as u64)),
        },
        format::size(trace.peak_live),
        trace
            .duration_ns
            .map_or(String::new(), |ns| format!(", {} long", format::duration(ns))),
        format::size(setup.device_memory)
    )?;
    if setup.repetitions > 1 || setup.lag_ns > 0 {
        writeln!(
            out,
            "played {}; the host runs {} ahead of the GPU",
            format::times(setup.repetitions),
            format::duration(setup.lag_ns)
        )?;
    }
    writeln!(out, "prices of driver calls: {}", played.price_table)?;
    if trace.unmatched > 0 {
        writeln!(
            out,
            "{} do not match the rest (an address allocated twice, or freed without an allocation): the figures may \
             be wrong",
            format::count(trace.unmatched)
        )?;
    }
    for note in &trace.notes {
        writeln!(out, "{note}")?;
    }
    let heads = [
        "strategy",
        "peak reserved",
        "utilisation",
        "driver calls",
        "driver time",
        "waits to allocate",
        "to free",
        "waiting",
        "of trace",
        "smallest device",
        "fits",
    ];
    let cells = played.rows.iter().map(|row| cells(row, trace));
    write_table(out, &heads, cells, heads.len() - 2)?;
    if setup.repetitions > 1 {
        let heads = [
            "strategy",
            "first: calls",
            "waits",
            "time",
            "later: calls",
            "waits",
            "time",
        ];
        let cells = played.rows.iter().map(|row| {
            let first = of_one(&row.outcome.first(), 1);
            let later = of_one(&row.outcome.later(), setup.repetitions - 1);
            [vec![row.outcome.name.to_owned()], first, later].concat()
        });
        writeln!(
            out,
            "\nCalls that change memory, waits, and the time of all calls and waits, in the first repetition and in \
             the mean\nof the later ones:"
        )?;
        write_table(out, &heads, cells, heads.len() - 1)?;
    }
    writeln!(out, "Recommendation: {}", played.recommendation.why)
}

/// Writes a table, the columns after the first aligned to the right.
fn write_table(
    out: &mut impl Write,
    heads: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    numbers: usize,
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heads);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1).take(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn cells(row: &Row, trace: &Trace) -> Vec<String> {
    let outcome = &row.outcome;
    let bill = outcome.bill();
    let fits = match outcome.failed {
        0 => "yes".to_owned(),
        1 => "no: 1 request failed".to_owned(),
        failed => format!("no: {} requests failed", format::count(failed)),
    };
    vec![
        outcome.name.to_owned(),
        format::size(outcome.peak_reserved),
        outcome
            .utilisation(trace)
            .map_or("-".to_owned(), |utilisation| format!("{utilisation:.3}")),
        format::count(bill.driver_calls()),
        format::duration(bill.driver_ns),
        format::count(bill.waits_in_allocations),
        format::count(bill.waits_in_frees),
        format::duration(bill.waited_ns),
        format::percent(outcome.share_of_trace(trace)),
        row.smallest.map_or("-".to_owned(), format::size),
        fits,
    ]
}

/// Calls that change memory, waits, and the time of all calls and waits; in one of `repetitions`.
fn of_one(bill: &Bill, repetitions: u64) -> Vec<String> {
    let mean = |sum: u64| {
        if sum.is_multiple_of(repetitions) {
            format::count(sum / repetitions)
        } else {
            format!("{:.1}", sum as f64 / repetitions as f64)
        }
    };
    vec![
        mean(bill.memory_calls()),
        mean(bill.waits()),
        format::duration(bill.total_ns() / repetitions),
    ]
}
