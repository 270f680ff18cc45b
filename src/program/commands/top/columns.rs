//! Tables whose columns are left out one after another while the screen is too narrow.

use crate::render::{format, width};

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

    pub fn count(count: Option<u64>) -> Cell {
        Cell::number(count.map(|count| count as f64), |count| format::count(count as u64))
    }
}

/// The columns, by index, that fit `width` characters. `kept` is never left out for lack of room.
pub fn fitting<T: AsRef<str>>(
    columns: &[Column],
    titles: &[T],
    texts: &[Vec<String>],
    width: usize,
    kept: Option<usize>,
) -> Vec<usize> {
    let mut expendable: Vec<usize> = (0..columns.len())
        .filter(|&place| columns[place].leaves > 0 && Some(place) != kept)
        .collect();
    expendable.sort_by_key(|&place| columns[place].leaves);
    width::fitting(titles, texts, &expendable, width)
}
