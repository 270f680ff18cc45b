//! Text tables without lines.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::format::columns;

/// The blanks between two columns.
const SPACE: u16 = 2;
/// A column of texts that are broken into lines is no narrower than this, nor than its words.
const LEAST: u16 = 12;
/// Longer words are broken.
const LONGEST_WORD: u16 = 24;

/// Writes a table that is no wider than standard output, if its width is known. The columns in `right` (usually numbers)
/// are aligned to the right. Where there is little room, other texts are broken into lines. Columns for which there is no
/// room even so stand below, beside the first column once more.
pub fn table(out: &mut impl Write, titles: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> io::Result<()> {
    write(out, columns(), titles, right, &rows)
}

fn write(
    out: &mut impl Write,
    room: Option<usize>,
    titles: &[&str],
    right: &[usize],
    rows: &[Vec<String>],
) -> io::Result<()> {
    let room = room.map(|room| u16::try_from(room).unwrap_or(u16::MAX));
    let mut all = Table::new();
    let widths = all.set_header(titles).add_rows(rows).column_max_content_widths();
    let least = |place: usize| {
        let texts = rows.iter().map(|row| row[place].as_str()).chain([titles[place]]);
        let words = texts.flat_map(|text| text.split(' ')).map(|word| word.chars().count());
        let longest = words.fold(0, |most, word| most.max(u16::try_from(word).unwrap_or(u16::MAX)));
        match right.contains(&place) {
            true => widths[place] + SPACE,
            false => widths[place].min(longest.clamp(LEAST, LONGEST_WORD)) + SPACE,
        }
    };
    let mut blocks = vec![vec![0]];
    let mut needed = least(0);
    for place in 1..titles.len() {
        let has_room = room.is_none_or(|room| needed + least(place) <= room);
        match blocks.last_mut() {
            Some(block) if has_room || block.len() == 1 => block.push(place),
            _ => {
                blocks.push(vec![0, place]);
                needed = least(0);
            }
        }
        needed += least(place);
    }
    for (number, block) in blocks.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(block.iter().map(|&place| titles[place]));
        table.add_rows(rows.iter().map(|row| block.iter().map(|&place| &row[place])));
        if let Some(room) = room {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(room);
        }
        for (column, &place) in table.column_iter_mut().zip(block) {
            if right.contains(&place) {
                column.set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least(place))));
            }
        }
        for line in table.lines() {
            writeln!(out, " {}", line.trim_end())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(room: Option<usize>) -> Vec<String> {
        let rows = [
            ["1.00 GiB", "train.py:88 keep_history < train.py:140 main", "12.0 s"],
            ["512 MiB", "short", "1.0 s"],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let mut out = Vec::new();
        write(&mut out, room, &["bytes", "what", "oldest from"], &[0, 2], &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn texts_are_broken_and_numbers_never() {
        let full = [
            "     bytes  what                                          oldest from",
            "  1.00 GiB  train.py:88 keep_history < train.py:140 main       12.0 s",
            "   512 MiB  short                                               1.0 s",
        ];
        assert_eq!(written(None), full);
        assert_eq!(written(Some(69)), full);
        let broken = [
            "     bytes  what                         oldest from",
            "  1.00 GiB  train.py:88 keep_history <        12.0 s",
            "            train.py:140 main",
            "   512 MiB  short                              1.0 s",
        ];
        assert_eq!(written(Some(53)), broken);
        for room in 25..100 {
            let lines = written(Some(room));
            assert!(lines.iter().all(|line| line.len() <= room), "{room}: {lines:#?}");
            let text = lines.join("\n");
            assert!(["1.00 GiB", "512 MiB", "12.0 s", "1.0 s"].iter().all(|number| text.contains(number)));
        }
    }

    #[test]
    fn columns_without_room_stand_below() {
        let lines = written(Some(30));
        assert_eq!(lines[lines.len() - 3], "     bytes  oldest from");
        assert_eq!(lines[lines.len() - 2], "  1.00 GiB       12.0 s");
        // No room at all is not obeyed.
        assert!(written(Some(1)).len() > 6);
    }
}
