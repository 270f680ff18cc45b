//! What the process held of the host's memory, as the records of it say (`Event::Host`).

use journal::format::HostMemory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAt {
    pub time_ns: u64,
    pub memory: HostMemory,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct HostLevels {
    pub first: Option<HostAt>,
    pub last: Option<HostAt>,
    /// The one with most resident memory. What came and went between two records is not seen.
    pub highest: Option<HostAt>,
}

/// Less growth than this is not told as growth.
const LEAST_GROWTH: u64 = 1 << 30;

impl HostLevels {
    pub fn add(&mut self, time_ns: u64, memory: HostMemory) {
        let at = HostAt { time_ns, memory };
        self.first.get_or_insert(at);
        self.last = Some(at);
        if self
            .highest
            .is_none_or(|highest| memory.resident > highest.memory.resident)
        {
            self.highest = Some(at);
        }
    }

    /// The first record and the highest, if resident memory grew by a gibibyte or more, and to twice of what it was.
    pub fn growth(&self) -> Option<(HostAt, HostAt)> {
        let (first, highest) = (self.first?, self.highest?);
        let grown = highest.memory.resident.saturating_sub(first.memory.resident);
        (grown >= LEAST_GROWTH.max(first.memory.resident)).then_some((first, highest))
    }
}
