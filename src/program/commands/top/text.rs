//! The tables as text: for `--once`, and at each update on a terminal that cannot draw.

use super::machine::Machine;
use super::{devices, events, rows};
use crate::render::format::{columns, printable, wrapped};
use crate::render::table::{Column, lay_out};

/// The latest events that are printed.
const EVENTS: usize = 10;

/// The tables, as wide as the terminal; a file or a pipe gets 80 columns. What does not fit is named.
pub fn text(machine: &mut Machine, once: bool) -> String {
    let room = columns().unwrap_or(80);
    let mut text = String::new();
    // Lines of at most `room` characters.
    let fold = |line: &str| wrapped(&format!("  {line}"), room) + "\n";
    let devices = devices::devices(machine);
    if !devices.is_empty() {
        text += &table(&devices::COLUMNS, &devices::texts(&devices), room, fold);
        text.push('\n');
    }
    let problem = devices::problem(machine).map(|problem| format!("Not known of the devices: {problem}."));
    let layer = devices::layer(machine).map(|layer| format!("{layer}."));
    for note in problem.iter().chain(&layer) {
        text += &fold(note);
        text.push('\n');
    }
    let mut rows = rows::all(machine);
    rows::sort(&mut rows, rows::GPU, false);
    if rows.is_empty() {
        text += &fold(&machine.nothing_to_show());
    } else {
        let texts: Vec<Vec<String>> = rows.iter().map(rows::Row::texts).collect();
        text += &table(&rows::COLUMNS, &texts, room, fold);
    }
    for (pid, why) in rows::not_known(machine) {
        text += &fold(&format!("{pid}: {}", printable(&why, 400)));
    }
    let events = events::lines(machine.take_events().iter());
    text.extend(events::latest(&events, EVENTS).map(|(line, _)| fold(line)));
    if let Some(more @ 1..) = events.len().checked_sub(EVENTS) {
        text += &format!("  ({more} more failures and marks; --json has all)\n");
    }
    if once { text } else { text + "\n" }
}

fn table(columns: &[Column], texts: &[Vec<String>], room: usize, fold: impl Fn(&str) -> String) -> String {
    let laid = lay_out(columns, texts, room.saturating_sub(2), None);
    let lines = [laid.header].into_iter().chain(laid.rows);
    let text: String = lines.map(|line| format!("  {line}\n")).collect();
    match laid.left_out.is_empty() {
        true => text,
        false => text + &fold(&format!("(no room for {}; --json has all)", laid.left_out.join(", "))),
    }
}
