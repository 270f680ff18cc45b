//! Who held how much, over time: the live bytes of *groups* of allocations at chosen moments.
//!
//! A group has the allocations of one device that agree in stack, API, thread, stream and class. Without a stack they
//! must agree in size as well, because the size is then what tells most about them. The number of groups is bounded:
//! when there are many, new ones are put together with fewer distinctions.
//!
//! `live_set` has each live allocation at a few moments; this module has sums at many.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use journal::format::{Event, NoStack, Record};

use super::device_ledger::Live;
use super::job::Observer;
use super::ledger::Ledger;

/// From so many groups on, new ones leave out thread and exact size.
const COARSE_FROM: usize = 4096;
/// From so many groups on, new ones have only device and class.
const COARSEST_FROM: usize = 8192;
/// The oldest allocation of each group is looked for while at most so many allocations are live.
const MOST_LIVE_TO_SEARCH: usize = 100_000;

/// A moment: all records up to this time and number count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// Nanoseconds since the journal began.
    pub time_ns: u64,
    /// The number of the last record that counts, in the order of time.
    pub event: u64,
}

/// What the allocations of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    pub device: i16,
    /// `Class` number
    pub class: u8,
    /// `Api` number; 0 if they differ.
    pub api: u16,
    /// 0 if they differ.
    pub tid: u32,
    pub stream: u8,
    /// `Record.stack`
    pub stack: u32,
    /// Requested bytes of each allocation.
    pub size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Size {
    Any,
    Exactly(u64),
    /// From this power of two up to twice as much.
    From(u64),
}

/// A group at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Allocated bytes of live allocations.
    pub bytes: u64,
    pub count: u64,
    /// Allocated bytes of all allocations so far, also of freed ones, and their number.
    pub ever_bytes: u64,
    pub ever_count: u64,
    /// When the oldest live one was made; `None` if it was not looked for, or there is none.
    pub oldest_ns: Option<u64>,
}

impl Held {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.ever_bytes = self.ever_bytes.saturating_add(bytes);
        self.count += 1;
        self.ever_count += 1;
    }

    fn subtract(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.count = self.count.saturating_sub(1);
    }
}

/// A group over time: its state at the numbers of moments at which it differs from that of the moment before.
#[derive(Clone, Debug)]
pub struct Series {
    pub group: Group,
    pub changes: Vec<(usize, Held)>,
}

impl Series {
    /// The most live bytes of the group at any of the moments.
    pub fn most(&self) -> u64 {
        self.changes.iter().map(|(_, held)| held.bytes).max().unwrap_or(0)
    }

    pub fn at(&self, moment: usize) -> Held {
        let until = self.changes.partition_point(|&(changed, _)| changed <= moment);
        self.changes[..until]
            .last()
            .map_or_else(Held::default, |&(_, held)| held)
    }

    /// The bytes of all allocations of the group, also of freed ones.
    pub fn ever(&self) -> u64 {
        self.changes.last().map_or(0, |(_, held)| held.ever_bytes)
    }
}

struct Gathered {
    series: Series,
    now: Held,
    changed: bool,
}

/// Groups while the records of a journal are read.
pub struct Holdings {
    moments: Vec<At>,
    /// The number of moments that have passed.
    passed: usize,
    places: HashMap<Group, usize, RandomState>,
    groups: Vec<Gathered>,
    /// Groups that changed since the last moment.
    changed: Vec<usize>,
}

impl Holdings {
    /// `moments` are sorted and given back by `moments`, each once.
    pub fn new(mut moments: Vec<At>) -> Self {
        moments.sort_unstable();
        moments.dedup();
        Holdings {
            moments,
            passed: 0,
            places: HashMap::default(),
            groups: Vec::new(),
            changed: Vec::new(),
        }
    }

    pub fn moments(&self) -> &[At] {
        &self.moments
    }

    fn change(&mut self, place: usize, change: impl FnOnce(&mut Held)) {
        let group = &mut self.groups[place];
        change(&mut group.now);
        if !group.changed {
            group.changed = true;
            self.changed.push(place);
        }
    }

    /// The place of a group in `groups`, which is the same each time. A group that has no place yet gets one.
    fn place(&mut self, group: Group) -> usize {
        let known = |group: &Group| self.places.get(group).copied();
        if let Some(place) = known(&group).or_else(|| known(&group.coarse())) {
            return place;
        }
        let group = match self.groups.len() {
            0..COARSE_FROM => group,
            COARSE_FROM..COARSEST_FROM => group.coarse(),
            _ => group.coarsest(),
        };
        *self.places.entry(group).or_insert_with(|| {
            self.groups.push(Gathered {
                series: Series {
                    group,
                    changes: Vec::new(),
                },
                now: Held::default(),
                changed: false,
            });
            self.groups.len() - 1
        })
    }

    /// Notes what changed up to the next moment.
    fn note(&mut self, ledger: &Ledger) {
        let mut oldest: HashMap<usize, u64, RandomState> = HashMap::default();
        if !self.changed.is_empty() && ledger.count_live() <= MOST_LIVE_TO_SEARCH {
            for live in ledger.live_unsorted().filter(|live| live.counts()) {
                let place = self.place(Group::of(live));
                let time = oldest.entry(place).or_insert(live.time_ns);
                *time = live.time_ns.min(*time);
            }
        }
        for place in self.changed.drain(..) {
            let group = &mut self.groups[place];
            group.changed = false;
            let held = Held {
                oldest_ns: oldest.get(&place).copied(),
                ..group.now
            };
            group.series.changes.push((self.passed, held));
        }
        self.passed += 1;
    }

    pub fn finish(mut self, ledger: &Ledger) -> Vec<Series> {
        while self.passed < self.moments.len() {
            self.note(ledger);
        }
        self.groups.into_iter().map(|group| group.series).collect()
    }
}

impl Observer for Holdings {
    fn before(&mut self, ledger: &Ledger, record: &Record) {
        let at = At {
            time_ns: record.time_ns,
            event: ledger.records,
        };
        while self.moments.get(self.passed).is_some_and(|&moment| moment < at) {
            self.note(ledger);
        }
    }

    fn after(&mut self, ledger: &Ledger, record: &Record) {
        if let Some(gone) = ledger.gone().filter(|gone| gone.counts()) {
            let place = self.place(Group::of(gone));
            self.change(place, |held| held.subtract(gone.allocated));
        }
        if let Event::Alloc(allocation) = record.event
            && let Some(live) = ledger.at(&allocation).filter(|live| live.counts())
        {
            let place = self.place(Group::of(live));
            self.change(place, |held| held.add(live.allocated));
        }
    }
}

impl Group {
    fn of(live: &Live) -> Self {
        Group {
            device: live.device,
            class: live.class,
            api: live.api,
            tid: live.tid,
            stream: live.stream,
            stack: live.stack,
            size: if NoStack::stack(live.stack).is_ok() {
                Size::Any
            } else {
                Size::Exactly(live.size)
            },
        }
    }

    fn coarse(self) -> Self {
        Group {
            tid: 0,
            size: match self.size {
                Size::Exactly(bytes) => Size::From(bytes.checked_ilog2().map_or(0, |power| 1 << power)),
                size => size,
            },
            ..self
        }
    }

    fn coarsest(self) -> Self {
        Group {
            api: 0,
            tid: 0,
            stream: 0,
            stack: 0,
            size: Size::Any,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::samples::{self, block};

    fn record(time_ns: u64, stack: u32, event: Event) -> Record {
        Record {
            tid: 7,
            stack,
            ..samples::record(time_ns, event)
        }
    }

    fn free(address: u64) -> Event {
        Event::free(block(address, 0))
    }

    fn after(time_ns: u64) -> At {
        At {
            time_ns,
            event: u64::MAX,
        }
    }

    /// The groups after these records.
    fn after_records(moments: Vec<At>, records: impl IntoIterator<Item = Record>) -> Vec<Series> {
        let (mut ledger, mut holdings) = (Ledger::default(), Holdings::new(moments));
        for record in records {
            holdings.before(&ledger, &record);
            ledger.apply(&record);
            holdings.after(&ledger, &record);
        }
        holdings.finish(&ledger)
    }

    fn held(series: &Series) -> Vec<(usize, u64, u64, Option<u64>)> {
        let told = |&(moment, held): &(usize, Held)| (moment, held.bytes, held.count, held.oldest_ns);
        series.changes.iter().map(told).collect()
    }

    #[test]
    fn groups_are_stacks_or_sizes() {
        // The moment (2, 1) ends with the second of the two records of time 2.
        let moments = vec![after(9), after(1), At { time_ns: 2, event: 1 }, after(5)];
        let records = [
            record(2, 1, Event::Alloc(block(0x1000, 100))),
            record(2, 1, Event::Alloc(block(0x2000, 50))),
            record(2, 0, Event::Alloc(block(0x3000, 10))),
            record(3, 0, Event::Alloc(block(0x4000, 11))),
            record(6, 0, free(0x1000)),
            record(6, 0, free(0x9000)),
        ];
        let series = after_records(moments, records);
        assert_eq!(series.len(), 3, "one stack and two sizes");
        assert_eq!(held(&series[0]), [(1, 150, 2, Some(2)), (3, 50, 1, Some(2))]);
        assert_eq!(held(&series[1]), [(2, 10, 1, Some(2))]);
        assert_eq!(series[2].group.size, Size::Exactly(11));
        assert_eq!(series[0].changes[1].1.ever_bytes, 150);
        assert_eq!(series[0].most(), 150);
    }

    #[test]
    fn an_address_that_is_given_out_again_replaces_the_stale_allocation() {
        let records = [(1, 100), (2, 30)].map(|(time, size)| record(time, 0, Event::Alloc(block(0x1000, size))));
        let series = after_records(vec![after(9)], records);
        let sums: Vec<u64> = series.iter().map(|series| series.changes[0].1.bytes).collect();
        assert_eq!(sums, [0, 30]);
    }

    #[test]
    fn the_number_of_groups_is_bounded_and_no_byte_is_lost() {
        let numbers = 1..100_000u64;
        let sum = numbers.clone().sum::<u64>();
        let records = numbers.map(|number| record(number, 0, Event::Alloc(block(number << 20, number))));
        let series = after_records(vec![after(u64::MAX)], records);
        assert!(series.len() <= COARSEST_FROM + 64);
        assert_eq!(series.iter().map(|series| series.changes[0].1.bytes).sum::<u64>(), sum);
    }
}
