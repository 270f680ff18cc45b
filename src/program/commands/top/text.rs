//! The tables as text: for `--once`, and at each update on a terminal that cannot draw.

use std::io::{self, Write};

use super::machine::Machine;
use super::{devices, events, rows};
use crate::render::format::{columns, printable, wrapped};
use crate::render::table::{Column, lay_out};

/// The latest events that are printed.
const EVENTS: usize = 10;

/// Writes the tables, as wide as the terminal; a file or a pipe gets 80 columns. What does not fit is named.
pub fn write(out: &mut impl Write, machine: &mut Machine, once: bool) -> io::Result<()> {
    let room = columns().unwrap_or(80).saturating_sub(2);
    let devices = devices::devices(machine);
    if !devices.is_empty() {
        print(out, &devices::COLUMNS, &devices::texts(&devices), room)?;
        writeln!(out)?;
    }
    if let Some(problem) = devices::problem(machine) {
        fold(out, &format!("Not known of the devices: {problem}."), room)?;
        writeln!(out)?;
    }
    if let Some(layer) = devices::layer(machine) {
        fold(out, &format!("{layer}."), room)?;
        writeln!(out)?;
    }
    let mut rows = rows::all(machine);
    rows::sort(&mut rows, rows::GPU, false);
    if rows.is_empty() {
        fold(out, &machine.nothing_to_show(), room)?;
    } else {
        let texts: Vec<Vec<String>> = rows.iter().map(rows::Row::texts).collect();
        print(out, &rows::COLUMNS, &texts, room)?;
    }
    for (pid, why) in rows::not_known(machine) {
        fold(out, &format!("{pid}: {}", printable(&why, 400)), room)?;
    }
    let events = events::lines(machine.take_events().iter());
    for (line, _) in events::latest(&events, EVENTS) {
        fold(out, line, room)?;
    }
    if let Some(more @ 1..) = events.len().checked_sub(EVENTS) {
        writeln!(out, "  ({more} more failures and marks; --json has all)")?;
    }
    if once { Ok(()) } else { writeln!(out) }
}

fn print(out: &mut impl Write, columns: &[Column], texts: &[Vec<String>], room: usize) -> io::Result<()> {
    let laid = lay_out(columns, texts, room, None);
    for line in [laid.header].iter().chain(&laid.rows) {
        writeln!(out, "  {line}")?;
    }
    if laid.left_out.is_empty() {
        return Ok(());
    }
    fold(
        out,
        &format!("(no room for {}; --json has all)", laid.left_out.join(", ")),
        room,
    )
}

/// Writes a text in lines of at most `room` characters and two blanks.
fn fold(out: &mut impl Write, text: &str, room: usize) -> io::Result<()> {
    writeln!(out, "{}", wrapped(&format!("  {text}"), room + 2))
}
