//! Checksums, which show a reader that bytes of the file are no longer those that the library wrote.
//!
//! Each checksum here notices every change of a single bit for certain, and other damage nearly always. The checksum of
//! a record is 22 bits of its commit word, so it costs no byte of the record and no store.

use super::record::WORDS;

/// Bits of a word that hold a value, if the other bits hold the value's checksum (`pack`).
const VALUE_BITS: u32 = 40;
const VALUE: u64 = (1 << VALUE_BITS) - 1;

// Odd numbers in which no 22 neighbouring bits are equal. So a change of any bit of a factor changes the upper 22 bits
// of the product.
const FACTORS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
];

/// The upper 22 bits of a sum of products. The products do not depend on each other, so the processor computes them
/// side by side.
#[inline(always)]
pub(crate) fn of_words(words: [u64; WORDS]) -> u64 {
    let [a, b, c, d, e, f, g] = words;
    let pairs = [a ^ b.rotate_left(32), c ^ d.rotate_left(32), e ^ f.rotate_left(32), g];
    let mut sum = 0u64;
    for (pair, factor) in pairs.into_iter().zip(FACTORS) {
        sum = sum.wrapping_add(pair.wrapping_mul(factor));
    }
    sum >> 42
}

/// A checksum of bytes, never 0. Each step is reversible, so a change within eight bytes changes the checksum.
pub(crate) fn of_bytes<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut sum = FACTORS[1];
    for part in parts {
        for bytes in part.chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(FACTORS[0]);
            sum ^= sum >> 32;
        }
    }
    sum.max(1)
}

/// A word with `value`, which is cut to 40 bits, and its checksum. The word of 0 is 0.
pub(crate) fn pack(value: u64) -> u64 {
    let value = value.min(VALUE);
    value | (value.wrapping_mul(FACTORS[2]) >> VALUE_BITS << VALUE_BITS)
}

/// The value in a word that `pack` made. The error is the value of a damaged word.
pub(crate) fn unpack(word: u64) -> Result<u64, u64> {
    let value = word & VALUE;
    if pack(value) == word { Ok(value) } else { Err(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_bit_changes_the_checksum(words: [u64; WORDS], place in 0..7usize, bit in 0..64u32) {
            let mut other = words;
            other[place] ^= 1 << bit;
            prop_assert_ne!(of_words(words), of_words(other));
        }

        #[test]
        fn one_bit_spoils_a_packed_word(value in 0..=VALUE, bit in 0..64u32) {
            prop_assert_eq!(unpack(pack(value)), Ok(value));
            prop_assert!(unpack(pack(value) ^ (1 << bit)).is_err());
        }

        #[test]
        fn one_bit_changes_it_for_bytes(bytes in prop::collection::vec(any::<u8>(), 1..99), place: usize, bit in 0..8u32) {
            let mut other = bytes.clone();
            other[place % bytes.len()] ^= 1 << bit;
            prop_assert_ne!(of_bytes([&bytes[..]]), of_bytes([&other[..]]));
        }
    }
}
