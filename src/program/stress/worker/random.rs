//! Numbers for the random mix.

/// Random numbers that a seed repeats: splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of a part of the work. Parts have numbers of their own.
    pub fn new(seed: u64, parts: &[u64]) -> Random {
        let mut random = Random(seed);
        parts.iter().for_each(|part| random.0 = random.next() ^ part);
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A size from 1 to about `most`. Each doubling is equally likely.
    pub fn size(&mut self, most: u64) -> u64 {
        let least = 1 << self.below(u64::from(most.max(2).ilog2()) + 1);
        (least + self.below(least)).min(most.max(1))
    }
}
