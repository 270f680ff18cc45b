//! Tables whose columns are left out one after another while the screen is too narrow.

use ratatui::text::Line;

use crate::render::format;

/// The space between two columns.
const SPACE: usize = 2;
/// The last of the columns that leave before a text is cut.
const BEFORE_CUTS: usize = 3;

pub struct Column {
    pub title: &'static str,
    pub is_number: bool,
    /// The place in the order in which columns are left out; a column with 0 stays.
    leaves: usize,
    /// The characters to which its texts may be cut; a number that is cut would be read as another one.
    least: usize,
    /// A text that is cut keeps its end.
    keeps_end: bool,
}

impl Column {
    pub const fn text(title: &'static str, leaves: usize) -> Column {
        Column {
            title,
            is_number: false,
            leaves,
            least: usize::MAX,
            keeps_end: false,
        }
    }

    pub const fn number(title: &'static str, leaves: usize) -> Column {
        Column {
            is_number: true,
            ..Column::text(title, leaves)
        }
    }

    pub const fn cut(title: &'static str, leaves: usize, least: usize) -> Column {
        Column {
            least,
            ..Column::text(title, leaves)
        }
    }

    /// The ends of pods' names differ, and not their begins.
    pub const fn cut_before(title: &'static str, leaves: usize, least: usize) -> Column {
        Column {
            keeps_end: true,
            ..Column::cut(title, leaves, least)
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
        match bytes {
            None => Cell::text("not known"),
            bytes => Cell::bytes(bytes),
        }
    }

    pub fn count(count: Option<u64>) -> Cell {
        Cell::number(count.map(|count| count as f64), |count| format::count(count as u64))
    }
}

/// A table as lines of text.
pub struct Laid {
    pub header: String,
    pub rows: Vec<String>,
    /// The titles of the columns that did not fit.
    pub left_out: Vec<&'static str>,
}

/// Lays a table out in `room` characters. While it does not fit, expendable columns are left out, those that say nothing
/// first, and then those at the right. The column that it is `sorted` by stays, and its title has the given mark.
pub fn lay_out(columns: &[Column], rows: &[Vec<String>], room: usize, sorted: Option<(usize, char)>) -> Laid {
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
    let mut expendable = places.clone();
    expendable.retain(|&place| columns[place].leaves > 0 && sorted.is_none_or(|(by, _)| by != place));
    let says = |place: usize| rows.iter().any(|row| !matches!(row[place].as_str(), "-" | ""));
    expendable.sort_by_key(|&place| (says(place), columns[place].leaves));
    for column in expendable {
        // The first go before a text is cut.
        let needed = if columns[column].leaves <= BEFORE_CUTS {
            &full
        } else {
            &widths
        };
        if total(needed, &places) > room {
            places.retain(|&place| place != column);
        }
    }
    while places.len() > 1 && total(&widths, &places) > room {
        places.pop();
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
            let text = cut(&row[place], widths[place], columns[place].keeps_end);
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

/// The width in characters of the terminal, of which some letters take two.
fn width(text: &str) -> usize {
    Line::from(text).width()
}

fn cut(text: &str, most: usize, keeps_end: bool) -> String {
    let mut text = text.to_owned();
    if width(&text) <= most {
        return text;
    }
    while width(&text) + 2 > most && !text.is_empty() {
        match keeps_end {
            true => drop(text.remove(0)),
            false => drop(text.pop()),
        }
    }
    if keeps_end { format!("..{text}") } else { text + ".." }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_until_the_rest_fits() {
        let row = |texts: [&str; 3]| vec![texts.map(str::to_owned).to_vec()];
        let fitting = |leaves: [usize; 3], texts, room| {
            let [one, two, three] = leaves;
            let columns = [
                Column::number("one", one),
                Column::text("text", two),
                Column::number("two", three),
            ];
            let laid = lay_out(&columns, &row(texts), room, None);
            assert!(laid.header.len() <= room.max(3) && laid.rows[0].len() <= room.max(3));
            laid.left_out
        };
        let long = ["1", "a long text", "2"];
        assert!(fitting([2, 1, 0], long, 21).is_empty());
        assert_eq!(fitting([2, 1, 0], long, 20), ["text"]);
        assert_eq!(fitting([2, 1, 0], long, 7), ["one", "text"]);
        assert_eq!(fitting([2, 1, 0], long, 1), ["one", "text"]);
        assert_eq!(fitting([0, 1, 0], long, 7), ["text", "two"], "no column is cut");
        assert_eq!(
            fitting([2, 1, 0], ["-", "a long text", "2"], 20),
            ["one"],
            "it says nothing"
        );
    }

    #[test]
    fn a_command_is_cut_before_a_column_goes() {
        let columns = [Column::number("pid", BEFORE_CUTS + 1), Column::cut("command", 0, 8)];
        let rows = vec![vec!["17".to_owned(), "python train.py".to_owned()]];
        let laid = |room| lay_out(&columns, &rows, room, None).rows.remove(0);
        assert_eq!(laid(20), " 17  python train.py");
        assert_eq!(laid(14), " 17  python ..");
        assert_eq!(laid(9), "python ..");
        assert_eq!(cut("llama-worker-3", 8, true), "..rker-3");
    }
}
