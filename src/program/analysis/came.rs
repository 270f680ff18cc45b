//! When the allocations of a holder came that are still live. `inspect --leaks` and `why` tell by it what may be a leak.

/// The parts of the time in which allocations are looked for.
const PARTS: u64 = 10;

/// In which tenths of a time live allocations came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came(u16);

impl Came {
    /// An allocation came at `time_ns`; of the time from `from_ns` to `to_ns` the tenths are told.
    pub fn at(time_ns: u64, (from_ns, to_ns): (u64, u64)) -> Came {
        if !(from_ns..=to_ns).contains(&time_ns) {
            return Came::default();
        }
        let part = (time_ns - from_ns).saturating_mul(PARTS) / (to_ns - from_ns).max(1);
        Came(1 << part.min(PARTS - 1))
    }

    pub fn and(self, other: Came) -> Came {
        Came(self.0 | other.0)
    }

    /// Whether allocations came in most tenths of the time, the last but one among them, and stayed. In the last tenth also
    /// memory of an unfinished step is live. A job that loads its data does the same.
    pub fn again_and_again(self) -> bool {
        u64::from(self.0.count_ones()) * 10 >= PARTS * 6 && self.0 >> (PARTS - 2) & 1 == 1
    }
}
