//! When the allocations of a holder came that are still live. `inspect --leaks` and `why` tell by it what may be a leak.

/// The parts of the time in which allocations are looked for.
const PARTS: u64 = 10;

/// In which tenths of a time live allocations came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came(u16);

impl Came {
    /// An allocation came at `time_ns`, within a time of `all_ns`.
    pub fn add(&mut self, time_ns: u64, all_ns: u64) {
        let part = time_ns.saturating_mul(PARTS) / all_ns.max(1);
        self.0 |= 1 << part.min(PARTS - 1);
    }

    /// The tenths of all of these.
    pub fn of_all(several: impl Iterator<Item = Came>) -> Came {
        Came(several.fold(0, |tenths, one| tenths | one.0))
    }

    /// Whether allocations came in most tenths of the time, the last but one among them, and stayed. In the last tenth also
    /// memory of an unfinished step is live. A job that loads its data does the same.
    pub fn again_and_again(self) -> bool {
        u64::from(self.0.count_ones()) * 10 >= PARTS * 6 && self.has(PARTS - 2)
    }

    fn has(self, part: u64) -> bool {
        self.0 >> part & 1 == 1
    }

    /// A sign for each tenth.
    pub fn drawn(self) -> String {
        (0..PARTS).map(|part| if self.has(part) { '#' } else { '.' }).collect()
    }
}
