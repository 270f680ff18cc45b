//! The pattern of a block: one word all over it, and stamps in some of its pages. The stamps tell pages of a block apart,
//! so a block whose pages were mapped in a wrong order is noticed.

/// The driver maps memory in pages of this size.
pub const PAGE_BYTES: u64 = 2 << 20;
const WORD_BYTES: u64 = 4;

/// Whether a page of a block has a stamp at its beginning: the first ones, then fewer.
fn has_stamp(page: u64) -> bool {
    page.is_power_of_two() || page % 64 == 3
}

/// The offsets of the stamps in a block of this size.
pub fn stamps(size: u64) -> impl Iterator<Item = u64> {
    let pages = size.saturating_sub(WORD_BYTES - 1).div_ceil(PAGE_BYTES);
    (0..pages).filter(|page| has_stamp(*page)).map(|page| page * PAGE_BYTES)
}

/// The word of the stamp at an offset of a block.
pub fn stamp(word: u32, offset: u64) -> u32 {
    word ^ ((offset / PAGE_BYTES) as u32).wrapping_mul(0x9e37_79b1)
}

/// How many whole words and further bytes a block of this size has.
pub fn parts(size: u64) -> (u64, u64) {
    (size / WORD_BYTES, size % WORD_BYTES)
}

/// The byte at an offset of a block.
pub fn byte(word: u32, offset: u64) -> u8 {
    let within = offset % PAGE_BYTES;
    let has_stamp = within < WORD_BYTES && has_stamp(offset / PAGE_BYTES);
    let word = if has_stamp { stamp(word, offset) } else { word };
    word.to_le_bytes()[(offset % WORD_BYTES) as usize]
}

/// The first offset at which the bytes of a block differ from its pattern. `bytes` begin at the offset `from`.
pub fn first_difference(word: u32, size: u64, from: u64, bytes: &[u8]) -> Option<u64> {
    let (words, _) = parts(size);
    let expected = |offset: u64| match offset < words * WORD_BYTES {
        true => byte(word, offset),
        // The bytes behind the last whole word.
        false => word.to_le_bytes()[0],
    };
    (from..)
        .zip(bytes)
        .find(|(offset, byte)| expected(*offset) != **byte)
        .map(|(offset, _)| offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(word: u32, size: u64) -> Vec<u8> {
        let (words, rest) = parts(size);
        let mut bytes: Vec<u8> = (0..words).flat_map(|_| word.to_le_bytes()).collect();
        bytes.extend((0..rest).map(|_| word.to_le_bytes()[0]));
        for offset in stamps(size) {
            let at = offset as usize;
            bytes[at..at + 4].copy_from_slice(&stamp(word, offset).to_le_bytes());
        }
        bytes
    }

    #[test]
    fn what_is_written_is_what_is_expected() {
        for size in [
            1,
            3,
            4,
            7,
            4096,
            PAGE_BYTES,
            PAGE_BYTES + 1,
            2 * PAGE_BYTES + 2,
            5 * PAGE_BYTES + 6,
        ] {
            let bytes = written(0x1234_5678, size);
            assert_eq!(first_difference(0x1234_5678, size, 0, &bytes), None, "{size}");
            let last = size - 1;
            let mut changed = bytes.clone();
            changed[last as usize] ^= 1;
            assert_eq!(first_difference(0x1234_5678, size, 0, &changed), Some(last), "{size}");
            assert_eq!(
                first_difference(0x1234_5678, size, last, &changed[last as usize..]),
                Some(last)
            );
        }
    }

    #[test]
    fn pages_in_a_wrong_order_are_noticed() {
        let size = 4 * PAGE_BYTES;
        let mut bytes = written(7, size);
        let (front, back) = bytes.split_at_mut(2 * PAGE_BYTES as usize);
        front[PAGE_BYTES as usize..].swap_with_slice(&mut back[..PAGE_BYTES as usize]);
        assert_eq!(first_difference(7, size, 0, &bytes), Some(PAGE_BYTES));
    }
}
