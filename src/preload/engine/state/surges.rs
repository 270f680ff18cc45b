//! Surges: memory that grows faster than `VRAMSHIM_SURGE`. The keeper looks at the totals from time to time, so a request
//! of the job pays nothing. If stacks are recorded, a request pays an atomic change (`Askers`), and the stacks that asked for
//! most while the memory grew go with the mark.
//!
//! The memory of a device is what the job's live allocations take there, and that of the host what is resident
//! (`resident_bytes`). Of the host's memory only pinned memory has stacks.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::State;
use super::host::{machine_bytes, resident_bytes};
use super::per_device::PerDevice;
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use base::say::info;
use base::units::size;
use config::Surge;
use quota::limits::Amount;

/// Looks within the time of a surge.
const LOOKS: u32 = 8;
/// Bounds of the time between two looks.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(250);

/// So many stacks of a look are remembered, and so many looks.
const STACKS_OF_A_LOOK: usize = 16;
const LOOKS_KEPT: usize = 4096;
/// So many stacks are told of a surge.
const TOLD: usize = 3;

/// What the job's threads and the keeper share.
pub struct Surges {
    /// `None` if nothing is watched.
    pub setting: Option<Surge>,
    /// The memory of each device; 0 as long as it is not known.
    totals: PerDevice<AtomicU64>,
    /// How many surges there were.
    counts: PerDevice<AtomicU64>,
}

impl Surges {
    pub fn new(setting: Option<Surge>) -> Surges {
        Surges {
            setting,
            totals: PerDevice::default(),
            counts: PerDevice::default(),
        }
    }

    /// The job uses this device, which has `total` bytes.
    pub fn device(&self, device: i16, total: u64) {
        self.totals.of(device).store(total, Relaxed);
    }

    /// Surges of this device, or of the host.
    pub fn count(&self, device: i16) -> u64 {
        self.counts.of(device).load(Relaxed)
    }
}

/// Growth that was too fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grown {
    bytes: u64,
    over: Duration,
}

/// The bounds of a surge in bytes.
#[derive(Clone, Copy)]
struct Bounds {
    from: Option<u64>,
    to: u64,
    within: Duration,
}

/// The levels of one device, or of the host, that the keeper saw.
struct Watch {
    samples: VecDeque<(Instant, u64)>,
    /// When the level was last at `from` or below. `None` after a surge, or after slower growth, until it is so again.
    below: Option<(Instant, u64)>,
    /// Who asked for memory up to each look: stacks with bytes.
    asked: VecDeque<(Instant, Vec<(u32, u64)>)>,
}

impl Watch {
    fn new(now: Instant, level: u64) -> Watch {
        Watch {
            samples: VecDeque::from([(now, level)]),
            below: Some((now, level)),
            asked: VecDeque::new(),
        }
    }

    fn look(&mut self, bounds: Bounds, now: Instant, level: u64) -> Option<Grown> {
        let grown = |(since, before): (Instant, u64)| Grown {
            bytes: level.saturating_sub(before),
            over: now.duration_since(since),
        };
        if let Some(from) = bounds.from {
            if level <= from {
                self.below = Some((now, level));
            }
            // Above the end of the range, the next surge needs a level at its begin first.
            let begin = if level >= bounds.to { self.below.take() } else { None };
            return begin.map(grown).filter(|grown| grown.over <= bounds.within);
        }
        let is_old =
            |sample: Option<&(Instant, u64)>| sample.is_some_and(|(at, _)| now.duration_since(*at) > bounds.within);
        while is_old(self.samples.front()) {
            self.samples.pop_front();
        }
        let lowest = self.samples.iter().copied().min_by_key(|&(_, level)| level);
        let found = lowest.map(grown).filter(|grown| grown.bytes >= bounds.to);
        if found.is_some() {
            self.samples.clear();
        }
        self.samples.push_back((now, level));
        found
    }

    /// Notes who asked for memory since the last look.
    fn note(&mut self, now: Instant, within: Duration, asked: Vec<(u32, u64)>) {
        if !asked.is_empty() {
            self.asked.push_back((now, asked));
        }
        while let Some((at, _)) = self.asked.front()
            && (now.duration_since(*at) > within || self.asked.len() > LOOKS_KEPT)
        {
            self.asked.pop_front();
        }
    }

    /// The stacks that asked for most after `since` and up to the look at `now`, with their bytes, largest first. What the look
    /// itself found always counts: at the first look of a device `since` is `now`.
    fn responsible(&self, since: Instant, now: Instant) -> Vec<(u32, u64)> {
        let mut sums: HashMap<u32, u64> = HashMap::new();
        for (_, asked) in self.asked.iter().filter(|(at, _)| *at > since || *at == now) {
            for &(stack, bytes) in asked {
                let sum = sums.entry(stack).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        largest(sums.into_iter(), TOLD)
    }
}

/// What the keeper remembers from look to look.
#[derive(Default)]
pub struct Watches(HashMap<i16, Watch>);

impl State {
    /// Marks what has grown too fast. Returns how long the keeper may sleep; `None` if nothing is watched.
    pub fn look_for_surges(&self, watches: &mut Watches) -> Option<Duration> {
        let setting = self.surges.setting?;
        let now = Instant::now();
        for device in self.measurements.used_devices() {
            let level = self.ledger.readings(device, None).allocated.current;
            let total = self.surges.totals.of(device).load(Relaxed);
            // Before its first use the job held nothing of a device.
            let watch = watches.0.entry(device).or_insert_with(|| Watch::new(now, 0));
            self.look_at(setting, watch, device, now, (level, total));
        }
        if let Some(level) = resident_bytes() {
            let watch = watches.0.entry(HOST_DEVICE).or_insert_with(|| Watch::new(now, level));
            self.look_at(setting, watch, HOST_DEVICE, now, (level, machine_bytes()));
        }
        Some((setting.within / LOOKS).clamp(SHORTEST, LONGEST))
    }

    fn look_at(&self, setting: Surge, watch: &mut Watch, device: i16, now: Instant, (level, total): (u64, u64)) {
        let askers = self.records.askers.as_ref();
        let asked = askers.map_or_else(Vec::new, |askers| askers.take(device, STACKS_OF_A_LOOK));
        watch.note(now, setting.within, asked);
        if total == 0 && matches!(setting.to, Amount::Share(_)) {
            return;
        }
        let bounds = Bounds {
            from: setting.from.map(|from| from.bytes(total)),
            to: setting.to.bytes(total),
            within: setting.within,
        };
        let Some(Grown { bytes, over }) = watch.look(bounds, now, level) else {
            return;
        };
        let count = self.surges.counts.of(device).fetch_add(1, Relaxed) + 1;
        let of = match device {
            HOST_DEVICE => "host".to_owned(),
            device => format!("device {device}"),
        };
        let seconds = over.as_secs_f64();
        let responsible = watch.responsible(now.checked_sub(over).unwrap_or(now), now);
        let stacks: Vec<u32> = responsible.iter().map(|&(stack, _)| stack).collect();
        let places = self.records.places_of(&stacks).into_iter().zip(&responsible);
        let named: Vec<String> = places
            .filter_map(|(place, &(_, bytes))| Some(format!("{} ({})", place?, size(bytes))))
            .collect();
        let named = match (named.is_empty(), device) {
            (true, _) => String::new(),
            (false, HOST_DEVICE) => format!(", pinned memory at {}", named.join(", ")),
            (false, _) => format!(", most at {}", named.join(", ")),
        };
        let text = format!("surge {of}: {} in {seconds:.2} s{named}", size(bytes));
        if count.is_power_of_two() {
            info!("{text}; {} held (surge {count})", size(level));
        }
        let over_ns = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
        self.records.surge(device, &text, bytes, over_ns, &responsible);
    }
}

const SLOTS: usize = 256;
/// How often an entry is tried that other threads change.
const TRIES: usize = 64;

/// Who asks for memory: of each device, and of the host, the bytes that each stack asked for since the last look. It is kept
/// only if surges are watched and stacks recorded.
///
/// A request costs a load and an atomic change. The table has `SLOTS` places for the stacks of a device. Two stacks with the
/// same place share it: the one that asked for more stays. Each entry has KiB in its upper half and the number of the stack
/// in its lower half; 0 is none.
pub struct Askers(Box<[[AtomicU64; SLOTS]]>);

fn entry(stack: u32, kib: u64) -> u64 {
    kib.min(u64::from(u32::MAX)) << 32 | u64::from(stack)
}

impl Askers {
    pub fn new() -> Askers {
        let devices = (0..=MAX_DEVICES).map(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        Askers(devices.collect())
    }

    fn slots(&self, device: i16) -> &[AtomicU64; SLOTS] {
        &self.0[(device as usize).min(MAX_DEVICES)]
    }

    /// The stack asked for memory of this device, or of the host.
    #[inline]
    pub fn add(&self, device: i16, stack: u32, bytes: u64) {
        let slot = &self.slots(device)[stack as usize % SLOTS];
        let kib = bytes.div_ceil(1024);
        for _ in 0..TRIES {
            let known = slot.load(Relaxed);
            let (of, held) = (known as u32, known >> 32);
            let now = if of == stack {
                entry(stack, held.saturating_add(kib))
            } else if kib > held {
                entry(stack, kib)
            } else {
                return;
            };
            if slot.compare_exchange_weak(known, now, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// The `most` stacks that asked for most since the last call, with bytes rounded up to KiB, largest first.
    pub fn take(&self, device: i16, most: usize) -> Vec<(u32, u64)> {
        let taken = self.slots(device).iter().filter(|slot| slot.load(Relaxed) != 0);
        let taken = taken.map(|slot| slot.swap(0, Relaxed));
        largest(taken.map(|known| (known as u32, (known >> 32) << 10)), most)
    }
}

/// The `most` stacks with most bytes, largest first.
pub fn largest(asked: impl Iterator<Item = (u32, u64)>, most: usize) -> Vec<(u32, u64)> {
    let mut asked: Vec<(u32, u64)> = asked.collect();
    asked.sort_unstable_by_key(|&(stack, bytes)| (Reverse(bytes), stack));
    asked.truncate(most);
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    /// Looks at levels in turn, each with its second.
    fn looks(bounds: Bounds) -> impl FnMut(u64, u64) -> Option<Grown> {
        let start = Instant::now();
        let mut watch = Watch::new(start, 0);
        move |second, level| watch.look(bounds, start + seconds(second), level)
    }

    #[test]
    fn growth_within_the_time_is_a_surge_once() {
        let mut looks = looks(Bounds {
            from: None,
            to: 100,
            within: seconds(10),
        });
        let mut look = |second, level| looks(second, level).map(|grown| grown.bytes);
        assert_eq!((look(5, 99), look(9, 100)), (None, Some(100)));
        assert_eq!(
            (look(10, 120), look(11, 199)),
            (None, None),
            "counted from the last surge on"
        );
        assert_eq!(look(12, 220), Some(120));
        // Slow growth, however far.
        for second in 1..50 {
            assert_eq!(look(20 + second * 9, 300 + second * 50), None, "{second}");
        }
        assert_eq!(look(1000, 10_000), None, "nobody looked for longer than the time");
    }

    #[test]
    fn a_range_must_be_crossed_in_time() {
        let mut looks = looks(Bounds {
            from: Some(10),
            to: 90,
            within: seconds(10),
        });
        let mut look = |second, level| looks(second, level).map(|grown| grown.over);
        assert_eq!((look(1, 5), look(5, 50), look(8, 95)), (None, None, Some(seconds(7))));
        assert_eq!(
            (look(9, 40), look(10, 95)),
            (None, None),
            "it never was at the begin again"
        );
        assert_eq!((look(20, 10), look(31, 90)), (None, None), "too slow");
        assert_eq!((look(40, 0), look(41, 100)), (None, Some(seconds(1))));
    }

    #[test]
    fn those_who_asked_while_the_memory_grew_are_responsible() {
        let start = Instant::now();
        let mut watch = Watch::new(start, 0);
        let mut note = |second, asked: &[(u32, u64)]| watch.note(start + seconds(second), seconds(60), asked.to_vec());
        note(1, &[(1, 900)]);
        note(2, &[(2, 10), (3, 20)]);
        note(3, &[]);
        note(4, &[(4, 5), (2, 30), (5, 1)]);
        assert_eq!(
            watch.responsible(start + seconds(1), start + seconds(4)),
            [(2, 40), (3, 20), (4, 5)]
        );
        assert_eq!(watch.responsible(start, start + seconds(4))[0], (1, 900));
        watch.note(start + seconds(63), seconds(60), Vec::new());
        let late = start + seconds(4);
        assert_eq!(watch.responsible(late, late), [(2, 30), (4, 5), (5, 1)]);
        assert_eq!(watch.responsible(start, late), [(2, 30), (4, 5), (5, 1)]);
    }

    #[test]
    fn bytes_of_a_stack_add_up_by_device() {
        let askers = Askers::new();
        askers.add(0, 7, 1 << 20);
        askers.add(0, 7, 1 << 20);
        askers.add(0, 9, 3 << 20);
        askers.add(1, 7, 100);
        askers.add(HOST_DEVICE, 5, 4096);
        assert_eq!(askers.take(0, 9), [(9, 3 << 20), (7, 2 << 20)]);
        assert_eq!(askers.take(0, 9), []);
        assert_eq!(
            (askers.take(1, 9), askers.take(HOST_DEVICE, 9)),
            (vec![(7, 1024)], vec![(5, 4096)])
        );
    }
}
