//! Formats numbers and tables, and shows the progress of a run.

use std::io::{IsTerminal, Write};

use comfy_table::{CellAlignment, Table, presets};

pub use base::text::count;

/// The number with about three significant digits.
pub fn significant(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => count(value.round() as u64),
    }
}

pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

pub fn prepare(table: &mut Table, heads: impl Iterator<Item = String>) {
    table.load_style(presets::NOTHING);
    table.set_header(heads);
}

/// Aligns the columns from `first` on to the right.
pub fn align(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// One line on stderr that shows how far the run is. Nothing is written if stderr is not a terminal.
pub struct Progress {
    terminal: bool,
}

impl Progress {
    pub fn new() -> Progress {
        Progress {
            terminal: std::io::stderr().is_terminal(),
        }
    }

    pub fn show(&self, text: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }

    pub fn clear(&self) {
        self.show("");
    }
}
