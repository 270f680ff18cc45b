//! Tables whose columns are left out one after another while the screen is too narrow.

use ratatui::text::Line;

use crate::render::format;

/// The space between two columns.
const SPACE: usize = 2;

pub struct Column {
    pub title: &'static str,
    pub is_number: bool,
    /// The place in the order in which columns are left out; a column with 0 stays.
    leaves: usize,
    /// The characters to which its texts may be cut; a number that is cut would be read as another one.
    least: usize,
}

impl Column {
    pub const fn text(title: &'static str, leaves: usize) -> Column {
        Column {
            title,
            is_number: false,
            leaves,
            least: usize::MAX,
        }
    }

    pub const fn number(title: &'static str, leaves: usize) -> Column {
        Column {
            is_number: true,
            ..Column::text(title, leaves)
        }
    }

    pub const fn cut(title: &'static str, least: usize) -> Column {
        Column {
            least,
            ..Column::text(title, 0)
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
    let mut widths: Vec<usize> = (titles.iter().enumerate())
        .map(|(place, title)| {
            let cells = rows.iter().map(|row| width(&row[place])).max().unwrap_or(0);
            cells.min(columns[place].least).max(width(title))
        })
        .collect();
    let total = |places: &[usize]| places.iter().map(|&place| widths[place] + SPACE).sum::<usize>();
    let mut places: Vec<usize> = (0..columns.len()).collect();
    let mut expendable = places.clone();
    expendable.retain(|&place| columns[place].leaves > 0 && sorted.is_none_or(|(by, _)| by != place));
    let says = |place: usize| rows.iter().any(|row| !matches!(row[place].as_str(), "-" | ""));
    expendable.sort_by_key(|&place| (says(place), columns[place].leaves));
    for column in expendable {
        if total(&places) <= room + SPACE {
            break;
        }
        places.retain(|&place| place != column);
    }
    while places.len() > 1 && total(&places) > room + SPACE {
        places.pop();
    }
    let mut rest = (room + SPACE).saturating_sub(total(&places));
    for &place in places.iter().filter(|&&place| columns[place].least < usize::MAX) {
        let wanted = rows.iter().map(|row| width(&row[place])).max().unwrap_or(0);
        let more = wanted.saturating_sub(widths[place]).min(rest);
        (widths[place], rest) = (widths[place] + more, rest - more);
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

/// The width in characters of the terminal, of which some letters take two.
fn width(text: &str) -> usize {
    Line::from(text).width()
}

fn cut(text: &str, most: usize) -> String {
    let mut text = text.to_owned();
    if width(&text) > most {
        while width(&text) + 2 > most && text.pop().is_some() {}
        text += "..";
    }
    text
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
        let columns = [Column::number("pid", 1), Column::cut("command", 8)];
        let rows = vec![vec!["17".to_owned(), "python train.py".to_owned()]];
        let laid = |room| lay_out(&columns, &rows, room, None).rows.remove(0);
        assert_eq!(laid(20), " 17  python train.py");
        assert_eq!(laid(14), " 17  python ..");
        assert_eq!(laid(9), "python ..");
    }
}
