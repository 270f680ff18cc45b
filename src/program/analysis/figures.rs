//! The figures of one process, summed from its records. The sums are the same in any order of the records. The growth
//! needs the order of time, which `followed_process` keeps within a reading.
//!
//! A record of a free has the sizes of the allocation that it ends. So levels are sums, and no allocation is remembered:
//! what a process costs does not grow with what it holds. The ledger (`analysis/ledger.rs`) gives the same levels for a
//! journal without lost events; a test compares both.

use base::api::{Api, ApiCode, Class, ClassCode, is_of_host_guard};
use base::cuda::{HOST_DEVICE, MAX_DEVICES};
use base::named;
use base::shortage::Verdict;
use journal::format::{Allocation, Event, Record};
use std::collections::BTreeMap;

use super::device_ledger::{Reclaims, counts};
use super::floors::Floors;
use super::host_levels::HostLevels;
use super::ledger::device_of;
use super::measurements::{Balance, Measurements};
use super::scene::{Around, Scene, Scenes, is_out_of_memory};

/// The class number that stands for all classes that this version does not know.
pub const UNKNOWN_CLASS: u8 = u8::MAX;

named! {
    pub enum Kind {
        Limit => "limit",
        /// The next layer had no memory.
        OutOfMemory => "out_of_memory",
        Other => "other",
        /// The host guard refused a call such as malloc, which asks for no memory of a GPU.
        HostGuard => "host_guard",
    }
}

impl Kind {
    fn of_failure(api: ApiCode, result: i32, over_limit: bool) -> Kind {
        match (over_limit, is_out_of_memory(result)) {
            _ if is_of_host_guard(api.number()) => Kind::HostGuard,
            (true, _) => Kind::Limit,
            (false, true) => Kind::OutOfMemory,
            (false, false) => Kind::Other,
        }
    }
}

/// The value of the label `verdict`. Of a failure it cannot be said that none failed: that place is for wrong calls.
pub fn cause_name(cause: Verdict) -> &'static str {
    if cause == Verdict::NoneFailed {
        "other"
    } else {
        cause.name()
    }
}

/// What is held, in bytes and as a number of allocations. A record of a free can be read before the record of its
/// allocation, so a sum can be below 0 for a while. With 128 bits no sum of a file's numbers overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    pub requested: i128,
    pub allocated: i128,
    pub reserved: i128,
    pub live: i128,
    /// Allocations so far, freed ones too.
    pub made: i128,
}

impl Levels {
    /// One allocation. Its free takes all but `made` away again.
    fn of(allocation: &Allocation) -> Levels {
        Levels {
            requested: allocation.requested.into(),
            allocated: allocation.allocated.into(),
            reserved: allocation.reserved.unwrap_or(0).into(),
            live: 1,
            made: 1,
        }
    }

    /// Bytes of a pool or a segment.
    fn bytes(used: u64, reserved: u64) -> Levels {
        let (requested, allocated, reserved) = (used.into(), used.into(), reserved.into());
        Levels {
            requested,
            allocated,
            reserved,
            ..Levels::default()
        }
    }

    fn add(&mut self, more: &Levels, sign: i128) {
        self.requested += sign * more.requested;
        self.allocated += sign * more.allocated;
        self.reserved += sign * more.reserved;
        self.live += sign * more.live;
        self.made += more.made * i128::from(sign > 0);
    }
}

/// What only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub allocations: u64,
    pub failures: [u64; Kind::ALL.len()],
    /// The same failures by their cause, in the order of `Verdict::ALL`.
    pub causes: [u64; Verdict::ALL.len()],
}

impl Counts {
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// Adds what one record counts. `cause` is why it failed; `NoneFailed` if it is no failure, or if the call was wrong.
    pub fn count(&mut self, record: &Record, cause: Verdict) {
        match record.event {
            Event::Alloc(_) => self.allocations += 1,
            Event::AllocFailed { result, over_limit, .. } => {
                self.failures[Kind::of_failure(record.api, result, over_limit) as usize] += 1;
                let place = Verdict::ALL.iter().position(|one| *one == cause);
                self.causes[place.unwrap_or(0)] += 1;
            }
            _ => {}
        }
    }
}

/// What a record last said of the driver's pool of one class, and when.
#[derive(Clone, Copy, Default)]
struct Pool {
    said: (u64, u64),
    reserved: u64,
    used: u64,
}

#[derive(Default)]
pub struct DeviceFigures {
    classes: BTreeMap<u8, Levels>,
    pools: BTreeMap<u8, Pool>,
    pub counts: Counts,
    pub reclaims: Reclaims,
    /// When memory was obtained or given back last, in nanoseconds since the journal began.
    pub changed_ns: u64,
    measurements: Measurements,
    floors: Floors,
}

impl DeviceFigures {
    pub fn classes(&self) -> impl Iterator<Item = (u8, &Levels)> {
        self.classes.iter().map(|(class, levels)| (*class, levels))
    }

    /// Bytes of the process's contexts, by NVML when it first used the device; `None` if it was not told.
    pub fn context(&self) -> Option<u64> {
        self.measurements.measured_context(None)
    }

    /// The sum of the classes that occupy memory of this device, or of the host.
    pub fn levels(&self, device: i16) -> Levels {
        let mut sum = Levels::default();
        for (class, levels) in self.classes().filter(|&(class, _)| counts(device, class)) {
            debug_assert_ne!(class, UNKNOWN_CLASS);
            sum.add(levels, 1);
        }
        sum
    }

    /// What is known for a verdict. Where free memory lies and what a strategy serves are not known here, and no verdict
    /// depends on them.
    fn around(&self, device: i16) -> (Around, &Measurements) {
        let levels = self.levels(device);
        let linear = self.classes.get(&Class::Linear.number());
        let around = Around {
            live: positive(levels.allocated),
            reserved: positive(levels.reserved),
            largest_cached: 0,
            in_segments: linear.map_or(0, |linear| positive(linear.reserved - linear.allocated)),
            private: 0,
            unused: None,
            unserved: 0,
            growth: self.floors.growth(),
        };
        (around, &self.measurements)
    }

    fn change(&mut self, class: ClassCode, by: Levels, sign: i128) {
        self.classes.entry(number_of(class)).or_default().add(&by, sign);
    }

    fn pool(&mut self, class: ClassCode, said: (u64, u64), reserved: u64, used: u64) {
        let used = if class == Class::Graph.into() { used } else { 0 };
        let pool = self.pools.entry(number_of(class)).or_default();
        if said < pool.said {
            return;
        }
        let before = std::mem::replace(pool, Pool { said, reserved, used });
        self.change(class, Levels::bytes(before.used, before.reserved), -1);
        self.change(class, Levels::bytes(used, reserved), 1);
    }
}

/// A sum as a number of bytes: 0 while the record of a free was read before that of its allocation.
pub fn positive(level: i128) -> u64 {
    u64::try_from(level.max(0)).unwrap_or(u64::MAX)
}

fn number_of(class: ClassCode) -> u8 {
    class.known().map_or(UNKNOWN_CLASS, |_| class.number())
}

/// The figures of a process, by device number; `HOST_DEVICE` is the host.
#[derive(Default)]
pub struct Figures {
    pub devices: BTreeMap<i16, DeviceFigures>,
    /// The requests are for PyTorch's tensors, and not for segments of its cache.
    pub serves_tensors: bool,
    pub host: HostLevels,
    pub scenes: Scenes,
}

impl Figures {
    pub fn levels(&self, device: i16) -> Levels {
        let figures = self.devices.get(&device);
        figures.map(|figures| figures.levels(device)).unwrap_or_default()
    }

    /// Adds what one record changes. A record of a device that cannot be is passed over. Returns what
    /// `Counts::count` takes; `judge` finds the verdict on a failure.
    pub fn apply(&mut self, record: &Record, judge: impl FnOnce(&Scene) -> Verdict) -> Verdict {
        let device = device_of(record);
        if let Event::Host(memory) = record.event {
            self.host.add(record.time_ns, memory);
            return Verdict::NoneFailed;
        }
        self.serves_tensors |= record.api.known() == Some(Api::vramshim_torch_alloc);
        let is_possible = (HOST_DEVICE..MAX_DEVICES as i16).contains(&device);
        let place = if is_possible { device } else { HOST_DEVICE };
        let devices = &mut self.devices;
        let mut cause = Verdict::NoneFailed;
        if self
            .scenes
            .apply(record, || devices.entry(place).or_default().around(place))
            && matches!(record.event, Event::AllocFailed { .. })
        {
            cause = self.scenes.last().map_or(cause, judge);
        }
        if !is_possible {
            return cause;
        }
        let figures = self.devices.entry(device).or_default();
        figures.counts.count(record, cause);
        if record.event.moves_memory() {
            figures.changed_ns = figures.changed_ns.max(record.time_ns);
        }
        match record.event {
            Event::Alloc(of) => figures.change(of.class, Levels::of(&of), 1),
            Event::Free { allocation: of, .. } => figures.change(of.class, Levels::of(&of), -1),
            Event::SegmentAlloc { size, again: false, .. } => {
                figures.change(Class::Linear.into(), Levels::bytes(0, size), 1);
            }
            Event::SegmentFree { size, again: false, .. } => {
                figures.change(Class::Linear.into(), Levels::bytes(0, size), -1);
            }
            Event::Reclaimed { bytes, for_others, .. } => figures.reclaims.add(bytes, for_others),
            Event::PoolReserved { class, reserved, used } => {
                figures.pool(class, (record.time_ns, record.slot), reserved, used);
            }
            Event::Measured { .. } => figures.measurements.add(record, Balance::default()),
            Event::ContextDestroyed { .. } => figures.measurements.context_destroyed(),
            _ => {}
        }
        let is_free = matches!(record.event, Event::Free { .. });
        if is_free || matches!(record.event, Event::Alloc(_)) {
            let live = positive(figures.levels(device).allocated);
            figures.floors.note(live, record.time_ns, is_free);
        }
        cause
    }
}
