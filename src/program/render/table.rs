//! Text tables without lines.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

/// Writes a table; the columns in `right` (usually numbers) are aligned to the right.
pub fn table(out: &mut impl Write, titles: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(titles).add_rows(rows);
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for line in table.lines() {
        writeln!(out, " {}", line.trim_end())?;
    }
    Ok(())
}
