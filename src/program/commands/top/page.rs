//! The tables as text: for `--once`, and at each update on a terminal that cannot draw.

use std::io::{self, IsTerminal, Write};

use super::devices::{self, DeviceRow};
use super::events;
use super::machine::Machine;
use super::rows::{self, Column, Row};
use crate::render::table::table;
use crate::render::width::{fitting, pick};

/// The latest events that are printed.
const EVENTS: usize = 10;

/// Writes the tables. Columns that do not fit a terminal are left out; a file or a pipe gets all. `once`: without what
/// needs two updates.
pub fn write(out: &mut impl Write, machine: &mut Machine, once: bool) -> io::Result<()> {
    let width = match io::stdout().is_terminal() {
        true => ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns)),
        false => usize::MAX,
    };
    let mut rows = rows::of(machine);
    Column::Pid.sort(&mut rows, false);
    let devices = devices::devices(machine);
    if !devices.is_empty() {
        let texts: Vec<Vec<String>> = devices.iter().map(DeviceRow::texts).collect();
        let kept = fitting(
            &DeviceRow::TITLES,
            &texts,
            &DeviceRow::EXPENDABLE,
            width.saturating_sub(2),
        );
        print(out, &DeviceRow::TITLES, &kept, texts, |place| place >= DeviceRow::TEXTS)?;
        writeln!(out)?;
    }
    if let Some(problem) = devices::problem(machine) {
        writeln!(out, "Not known of the devices: {problem}.\n")?;
    }
    if let Some(layer) = devices::layer(machine) {
        writeln!(out, "{layer}.\n")?;
    }
    if rows.is_empty() {
        writeln!(out, "{}", machine.nothing_to_show())?;
    } else {
        let columns: Vec<Column> = (Column::ALL.iter().copied())
            .filter(|column| !(once && column.needs_updates()))
            .collect();
        let titles: Vec<&str> = columns.iter().map(|column| column.title()).collect();
        let text = |row: &Row| columns.iter().map(|column| column.text(row)).collect();
        let texts: Vec<Vec<String>> = rows.iter().map(text).collect();
        let place = |column: &Column| columns.iter().position(|one| one == column);
        let expendable: Vec<usize> = Column::EXPENDABLE.iter().filter_map(place).collect();
        let kept = fitting(&titles, &texts, &expendable, width.saturating_sub(2));
        print(out, &titles, &kept, texts, |place| columns[place].is_number())?;
    }
    let events = machine.take_events();
    for event in events.iter().skip(events.len().saturating_sub(EVENTS)) {
        writeln!(out, "  {}", events::line(event))?;
    }
    match once {
        true => Ok(()),
        false => writeln!(out),
    }
}

fn print(
    out: &mut impl Write,
    titles: &[&str],
    kept: &[usize],
    mut texts: Vec<Vec<String>>,
    is_number: impl Fn(usize) -> bool,
) -> io::Result<()> {
    let titles: Vec<&str> = kept.iter().map(|&place| titles[place]).collect();
    texts.iter_mut().for_each(|row| pick(row, kept));
    let numbers: Vec<usize> = (0..kept.len()).filter(|&place| is_number(kept[place])).collect();
    table(out, &titles, &numbers, texts)
}
