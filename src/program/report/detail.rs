//! How much of each process a report keeps: the more processes there are, the less of each.

pub struct Detail {
    /// Spans of a curve.
    pub spans: usize,
    /// Moments at equal distances at which the page knows who holds what.
    pub moments: usize,
    pub groups: usize,
    /// Records in the list of events.
    pub events: usize,
    pub failures: usize,
}

impl Detail {
    /// The detail of a report about one process.
    const FULL: Detail = Detail {
        spans: 6000,
        moments: 240,
        groups: 320,
        events: 12_000,
        failures: 200,
    };

    /// The detail of each of `processes`.
    pub fn each_of(processes: usize) -> Detail {
        let share = |all: usize, least: usize, most: usize| (all / processes.max(1)).clamp(least, most);
        let full = Detail::FULL;
        Detail {
            spans: share(full.spans * 2, 16, full.spans),
            moments: share(full.moments * 3, 8, full.moments),
            groups: share(full.groups * 2, 8, full.groups),
            events: share(full.events, 24, full.events),
            failures: share(full.failures * 4, 4, full.failures),
        }
    }
}
