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
}

impl Column {
    pub const fn text(title: &'static str, leaves: usize) -> Column {
        Column {
            title,
            is_number: false,
            leaves,
        }
    }

    pub const fn number(title: &'static str, leaves: usize) -> Column {
        Column {
            is_number: true,
            ..Column::text(title, leaves)
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

/// The columns, by index, that fit `room` characters. As long as they do not, the expendable ones are left out one after
/// another, but not `kept`, and then those at the right. A number that is cut would be read as another one.
pub fn fitting<T: AsRef<str>>(
    columns: &[Column],
    titles: &[T],
    texts: &[Vec<String>],
    room: usize,
    kept: Option<usize>,
) -> Vec<usize> {
    let mut places: Vec<usize> = (0..columns.len()).collect();
    let mut expendable = places.clone();
    expendable.retain(|&place| columns[place].leaves > 0 && Some(place) != kept);
    expendable.sort_by_key(|&place| columns[place].leaves);
    for column in expendable {
        if total(titles, texts, &places) <= room {
            break;
        }
        places.retain(|&place| place != column);
    }
    while places.len() > 1 && total(titles, texts, &places) > room {
        places.pop();
    }
    places
}

fn total<T: AsRef<str>>(titles: &[T], texts: &[Vec<String>], kept: &[usize]) -> usize {
    let all: usize = kept.iter().map(|&place| width(titles, texts, place)).sum();
    all + SPACE * kept.len().saturating_sub(1)
}

/// The width of a column in characters of the terminal, of which some letters take two.
pub fn width<T: AsRef<str>>(titles: &[T], texts: &[Vec<String>], place: usize) -> usize {
    let cells = texts.iter().map(|row| row[place].as_str());
    cells
        .chain([titles[place].as_ref()])
        .map(|text| Line::from(text).width())
        .max()
        .unwrap_or(0)
}

/// Keeps these cells of a row.
pub fn pick(row: &mut Vec<String>, kept: &[usize]) {
    *row = kept.iter().map(|place| std::mem::take(&mut row[*place])).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_until_the_rest_fits() {
        let texts = vec![vec!["1".to_owned(), "a long text".to_owned(), "2".to_owned()]];
        let titles = ["one", "text", "two"];
        let fitting = |leaves: [usize; 3], room| {
            let columns = leaves.map(|leaves| Column::number("", leaves));
            fitting(&columns, &titles, &texts, room, None)
        };
        assert_eq!(fitting([2, 1, 0], 21), [0, 1, 2]);
        assert_eq!(fitting([2, 1, 0], 20), [0, 2]);
        assert_eq!(fitting([2, 1, 0], 7), [2]);
        assert_eq!(fitting([2, 1, 0], 1), [2]);
        assert_eq!(fitting([0, 1, 0], 7), [0], "no column is cut");
    }
}
