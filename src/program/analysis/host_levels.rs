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
}
