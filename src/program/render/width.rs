//! Tables that fit a screen: which columns are shown.

use ratatui::text::Line;

/// The space between two columns.
const SPACE: usize = 2;

/// The columns, by index, that fit `width` characters. Those in `expendable` are left out one after another, as long as
/// the others do not fit, and then those at the right. A number that is cut would be read as another one.
pub fn fitting<T: AsRef<str>>(titles: &[T], texts: &[Vec<String>], expendable: &[usize], width: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..titles.len()).collect();
    for column in expendable {
        if total(titles, texts, &kept) <= width {
            break;
        }
        kept.retain(|place| place != column);
    }
    while kept.len() > 1 && total(titles, texts, &kept) > width {
        kept.pop();
    }
    kept
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
        assert_eq!(fitting(&titles, &texts, &[1, 0], 21), [0, 1, 2]);
        assert_eq!(fitting(&titles, &texts, &[1, 0], 20), [0, 2]);
        assert_eq!(fitting(&titles, &texts, &[1, 0], 7), [2]);
        assert_eq!(fitting(&titles, &texts, &[1, 0], 1), [2]);
        assert_eq!(fitting(&titles, &texts, &[1], 7), [0], "no column is cut");
    }
}
