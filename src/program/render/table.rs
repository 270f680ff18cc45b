//! Text tables without lines, which are made as narrow as the screen.

use ratatui::text::Line;

use crate::render::format;

const SPACE: usize = 2;
/// In tables that leave nothing out, shorter texts are whole.
const NEVER_CUT: usize = 24;

pub struct Column<'t> {
    pub title: &'t str,
    pub is_number: bool,
    /// The characters to which its texts may be cut; a number that is cut would be read as another one.
    least: usize,
}

impl<'t> Column<'t> {
    /// Of a table that leaves nothing out.
    fn titled(title: &'t str) -> Column<'t> {
        match title.strip_prefix('>') {
            Some(title) => Column::number(title),
            None => Column::cut(title, NEVER_CUT),
        }
    }

    pub const fn text(title: &'t str) -> Column<'t> {
        Column {
            title,
            is_number: false,
            least: usize::MAX,
        }
    }

    pub const fn number(title: &'t str) -> Column<'t> {
        Column {
            is_number: true,
            ..Column::text(title)
        }
    }

    pub const fn cut(title: &'t str, least: usize) -> Column<'t> {
        Column {
            least,
            ..Column::text(title)
        }
    }
}

#[derive(Clone)]
pub struct Cell {
    pub text: String,
    /// What rows are sorted by in a column of numbers.
    pub number: Option<f64>,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            number: None,
        }
    }

    pub fn number(number: Option<f64>, show: impl Fn(f64) -> String) -> Cell {
        Cell {
            text: number.map_or_else(|| "-".to_owned(), show),
            number,
        }
    }

    pub fn bytes(bytes: Option<u64>) -> Cell {
        Cell::number(bytes.map(|bytes| bytes as f64), |bytes| format::size(bytes as u64))
    }

    /// Bytes that can be not known.
    pub fn known(bytes: Option<u64>) -> Cell {
        let number = bytes.map(|bytes| bytes as f64);
        let text = format::size_or_not_known(bytes);
        Cell { text, number }
    }

    pub fn count(count: Option<u64>) -> Cell {
        Cell::number(count.map(|count| count as f64), |count| format::count(count as u64))
    }
}

pub struct Laid<'t> {
    pub header: String,
    pub rows: Vec<String>,
    /// The titles of the columns that did not fit.
    pub left_out: Vec<&'t str>,
}

/// Lays a table out in `room` characters. If texts that are cut do not make it fit, the columns at the right are left out. The
/// first column stays, and so does the one that it is `sorted` by, whose title has the given mark.
pub fn lay_out<'t>(
    columns: &[Column<'t>],
    rows: &[Vec<String>],
    room: usize,
    sorted: Option<(usize, char)>,
) -> Laid<'t> {
    let titles = columns.iter().enumerate().map(|(place, column)| match sorted {
        Some((by, mark)) if by == place => format!("{mark}{}", column.title),
        _ => column.title.to_owned(),
    });
    let titles: Vec<String> = titles.collect();
    let widest = |place: usize| {
        let cells = rows.iter().map(|row| width(&row[place])).max().unwrap_or(0);
        cells.max(width(&titles[place]))
    };
    let full: Vec<usize> = (0..columns.len()).map(widest).collect();
    let least = full.iter().zip(columns).zip(&titles);
    let least = least.map(|((&full, column), title)| full.min(column.least.max(width(title))));
    let mut widths: Vec<usize> = least.collect();
    let total = |widths: &[usize], places: &[usize]| -> usize {
        let all: usize = places.iter().map(|&place| widths[place] + SPACE).sum();
        all.saturating_sub(SPACE)
    };
    let mut places: Vec<usize> = (0..columns.len()).collect();
    for place in (1..columns.len()).rev() {
        if total(&widths, &places) > room && sorted.is_none_or(|(by, _)| by != place) {
            places.retain(|&kept| kept != place);
        }
    }
    while total(&widths, &places) < room {
        let cut = places.iter().filter(|&&place| widths[place] < full[place]);
        let Some(&most) = cut.min_by_key(|&&place| widths[place]) else {
            break;
        };
        widths[most] += 1;
    }
    let line = |row: &[String]| {
        let mut line = String::new();
        for &place in &places {
            let text = cut(&row[place], widths[place]);
            let blanks = " ".repeat(widths[place].saturating_sub(width(&text)));
            line += &if columns[place].is_number {
                blanks + &text
            } else {
                text + &blanks
            };
            line += &" ".repeat(SPACE);
        }
        line.trim_end().to_owned()
    };
    let left_out = (0..columns.len()).filter(|place| !places.contains(place));
    Laid {
        header: line(&titles),
        rows: rows.iter().map(|row| line(row)).collect(),
        left_out: left_out.map(|place| columns[place].title).collect(),
    }
}

/// A table as text that is no wider than standard output, if its width is known. Between two of the `titles` stands `|`. A
/// column whose title has `>` before it is aligned to the right, as numbers are, and never cut. Columns without room stand
/// below, beside the first column once more.
pub fn table(titles: &str, mut rows: Vec<Vec<String>>) -> String {
    let mut text = String::new();
    let mut columns: Vec<Column> = titles.split('|').map(Column::titled).collect();
    let mut room = format::columns().unwrap_or(usize::MAX).saturating_sub(SPACE);
    loop {
        let laid = lay_out(&columns, &rows, room, None);
        let shown = columns.len() - laid.left_out.len();
        if shown == 1 && columns.len() > 1 {
            // No screen is so narrow.
            room = usize::MAX;
            continue;
        }
        for line in [&laid.header].into_iter().chain(&laid.rows) {
            text += &format!("  {line}\n");
        }
        if laid.left_out.is_empty() {
            return text;
        }
        text.push('\n');
        columns.drain(1..shown);
        rows.iter_mut().for_each(|row| drop(row.drain(1..shown)));
    }
}

/// The width in characters of the terminal, of which some letters take two.
fn width(text: &str) -> usize {
    Line::from(text).width()
}

/// A text that is too long keeps its begin and its end: names of pods and of hosts differ at the end.
fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let letters: Vec<char> = text.chars().collect();
    let keep = |kept: usize| -> String {
        let (begin, end) = (&letters[..kept.div_ceil(2)], &letters[letters.len() - kept / 2..]);
        begin.iter().chain(&['.', '.']).chain(end).collect()
    };
    let mut shorter = (0..letters.len()).rev().map(keep);
    shorter.find(|text| width(text) <= most).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_cut_before_a_column_goes() {
        let columns = [Column::number("pid"), Column::cut("command", 8)];
        let rows = vec![vec!["17".to_owned(), "python train.py".to_owned()]];
        let laid = |room| lay_out(&columns, &rows, room, None).rows.remove(0);
        assert_eq!(laid(20), " 17  python train.py");
        assert_eq!(laid(14), " 17  pyth...py");
        assert_eq!(laid(9), " 17");
        assert_eq!(cut("llama-worker-3", 8), "lla..r-3");
    }
}
