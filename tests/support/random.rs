//! Random numbers and random damage; the same seed gives the same ones.

/// xorshift64
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // The state must not be 0, from which no other number comes.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    /// Changes some bytes: sets, adds, moves, repeats or removes them, or puts words there that a file of this kind has.
    pub fn damage(&mut self, bytes: &mut Vec<u8>, words: &[&[u8]]) {
        const EXTREMES: [u64; 8] = [0, 1, u64::MAX, 1 << 31, 1 << 32, 1 << 63, i64::MAX as u64, 0xffff_ffff];
        for _ in 0..=self.below(6) {
            if bytes.is_empty() {
                bytes.push(self.number() as u8);
            }
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(64)).min(bytes.len());
            match self.below(9) {
                0 => bytes[at] = self.number() as u8,
                1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes[at] = bytes[at].wrapping_add(self.below(9) as u8).wrapping_sub(4),
                3 => {
                    let number = EXTREMES[self.below(EXTREMES.len())].to_le_bytes();
                    let end = (at + 1 + self.below(8)).min(bytes.len());
                    bytes[at..end].copy_from_slice(&number[..end - at]);
                }
                4 => drop(bytes.drain(at..end)),
                5 => bytes.truncate(at.max(1)),
                6 => {
                    let part = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, part);
                }
                7 => {
                    let other = self.below(bytes.len());
                    bytes.swap(at, other);
                }
                _ if words.is_empty() => bytes.insert(at, self.number() as u8),
                _ => {
                    let word = words[self.below(words.len())];
                    let end = if self.below(2) == 0 {
                        at
                    } else {
                        end.min(at + word.len())
                    };
                    bytes.splice(at..end, word.iter().copied());
                }
            }
        }
    }
}
