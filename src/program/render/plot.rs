//! A curve drawn in the terminal with block characters, or with ASCII characters.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The lowest and the highest bytes in one column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Column {
    pub lowest: u64,
    pub highest: u64,
}

/// The rows of a drawing, from the top. Each column is filled up to its highest bytes; with blocks, what lies between its
/// lowest and its highest is lighter.
pub fn rows(columns: &[Column], most: u64, height: usize, ascii: bool) -> Vec<String> {
    let steps = if ascii { 2 } else { 8 };
    let level = |bytes: u64| (u128::from(bytes) * (height * steps) as u128).div_ceil(u128::from(most.max(1))) as usize;
    let cell = |column: &Column, row: usize| {
        let below = (height - 1 - row) * steps;
        let filled = level(column.highest).saturating_sub(below).min(steps);
        let is_solid = level(column.lowest) >= below + filled;
        match (filled, ascii) {
            (0, _) => ' ',
            (1, true) => {
                if is_solid {
                    '.'
                } else {
                    '\''
                }
            }
            (_, true) => {
                if is_solid {
                    '#'
                } else {
                    ':'
                }
            }
            (8, false) if !is_solid => '░',
            (part, false) => BLOCKS[part - 1],
        }
    };
    let row = |row| columns.iter().map(|column| cell(column, row)).collect::<String>();
    (0..height).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_peak_reaches_the_top() {
        let column = |lowest, highest| Column { lowest, highest };
        let columns = [column(0, 0), column(50, 50), column(50, 100), column(100, 100)];
        assert_eq!(rows(&columns, 100, 2, true), ["  :#", " ###"]);
        assert_eq!(rows(&columns, 100, 2, false), ["  ░█", " ███"]);
        assert_eq!(
            rows(&[column(1, 1)], 1000, 2, false),
            [" ", "▁"],
            "a single byte is seen"
        );
        assert_eq!(rows(&[column(0, 0)], 0, 1, true), [" "]);
        assert_eq!(rows(&[column(u64::MAX, u64::MAX)], u64::MAX, 1, true), ["#"]);
    }
}
