//! The tables as text: for `--once`, and at each update on a terminal that cannot draw.

use std::io::{self, IsTerminal, Write};

use super::columns::{Column, fitting, pick};
use super::devices::{self, DeviceRow};
use super::machine::Machine;
use super::{events, rows};
use crate::render::format::printable;
use crate::render::table::table;

/// The latest events that are printed.
const EVENTS: usize = 10;

/// Writes the tables. Columns that do not fit a terminal are left out; a file or a pipe gets all.
pub fn write(out: &mut impl Write, machine: &mut Machine, once: bool) -> io::Result<()> {
    let devices = devices::devices(machine);
    if !devices.is_empty() {
        let texts = devices.iter().map(DeviceRow::texts).collect();
        print(out, &devices::COLUMNS, texts)?;
        writeln!(out)?;
    }
    if let Some(problem) = devices::problem(machine) {
        writeln!(out, "Not known of the devices: {problem}.\n")?;
    }
    if let Some(layer) = devices::layer(machine) {
        writeln!(out, "{layer}.\n")?;
    }
    let mut rows = rows::all(machine);
    rows::sort(&mut rows, rows::PID, false);
    if rows.is_empty() {
        writeln!(out, "{}", machine.nothing_to_show())?;
    } else {
        let texts = rows.iter().map(rows::Row::texts).collect();
        print(out, &rows::COLUMNS, texts)?;
    }
    for (pid, why) in rows::not_known(machine) {
        writeln!(out, "  {pid}: {}", printable(&why, 400))?;
    }
    let events = machine.take_events();
    for event in events.iter().skip(events.len().saturating_sub(EVENTS)) {
        writeln!(out, "  {}", events::line(event))?;
    }
    if once { Ok(()) } else { writeln!(out) }
}

fn print(out: &mut impl Write, columns: &[Column], mut texts: Vec<Vec<String>>) -> io::Result<()> {
    let width = if io::stdout().is_terminal() {
        ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns))
    } else {
        usize::MAX
    };
    let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
    let kept = fitting(columns, &titles, &texts, width.saturating_sub(2), None);
    texts.iter_mut().for_each(|row| pick(row, &kept));
    let titles: Vec<&str> = kept.iter().map(|&place| titles[place]).collect();
    let numbers: Vec<usize> = (0..kept.len())
        .filter(|&place| columns[kept[place]].is_number)
        .collect();
    table(out, &titles, &numbers, texts)
}
