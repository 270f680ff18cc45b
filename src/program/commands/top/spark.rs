//! A sparkline: the levels of a series as characters side by side.

use crate::render::format::is_dumb;

const BLOCKS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];
const ASCII: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// The last `most` levels, from 0 to the highest of them. The lowest character stands for 0 and for little more.
pub fn spark(levels: &[u64], most: usize) -> String {
    drawn(levels, most, if is_dumb() { ASCII } else { BLOCKS })
}

fn drawn(levels: &[u64], most: usize, characters: [char; 8]) -> String {
    let shown = &levels[levels.len().saturating_sub(most)..];
    let highest = shown.iter().copied().max().unwrap_or(0);
    let character = |level: &u64| match highest {
        0 => characters[0],
        highest => {
            characters[(u128::from(*level) * 7 + u128::from(highest) / 2).div_euclid(u128::from(highest)) as usize]
        }
    };
    shown.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_in_proportion() {
        assert_eq!(drawn(&[0, 1, 2, 3, 4, 5, 6, 7], 8, ASCII), "_.:-=+*#");
        assert_eq!(drawn(&[0, 0], 8, ASCII), "__");
        assert_eq!(drawn(&[], 8, ASCII), "");
        assert_eq!(drawn(&[9, 1, u64::MAX], 2, ASCII), "_#");
        assert_eq!(drawn(&[5, 5], 8, BLOCKS), "\u{2588}\u{2588}");
    }
}
