//! The ledger of one device, or of the host, as the events of a journal built it.
//!
//! It counts the allocations that are live, by class, and the memory that was obtained for them. `ledger` applies the
//! events; this file knows no record.

use std::collections::BTreeMap;

use base::api::Class;
use base::cuda::HOST_DEVICE;

use super::measurements::{Balance, Measurements};
use super::slack::Slack;
use super::space::Space;

/// A number of bytes and the most it ever was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub current: u64,
    pub peak: u64,
}

impl Level {
    pub(super) fn add(&mut self, bytes: u64) {
        self.current = self.current.saturating_add(bytes);
        self.peak = self.peak.max(self.current);
    }

    pub(super) fn subtract(&mut self, bytes: u64) {
        self.current = self.current.saturating_sub(bytes);
    }

    /// Moves by the difference of two readings of one quantity.
    pub(super) fn change(&mut self, before: u64, now: u64) {
        self.add(now.saturating_sub(before));
        self.subtract(before.saturating_sub(now));
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub requested: Level,
    pub allocated: Level,
    pub reserved: Level,
    /// Allocations made in all, and live now.
    pub count: u64,
    pub live: u64,
    /// Bytes of all that were made.
    pub bytes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, live: &Live) {
        self.requested.add(live.size);
        self.allocated.add(live.allocated);
        self.reserved.add(live.reserved);
        self.count += 1;
        self.live += 1;
        self.bytes = self.bytes.saturating_add(live.size);
    }

    pub(super) fn subtract(&mut self, live: &Live) {
        self.requested.subtract(live.size);
        self.allocated.subtract(live.allocated);
        self.reserved.subtract(live.reserved);
        self.live = self.live.saturating_sub(1);
    }

    /// The share of what was taken that was put to use: peak allocated of peak reserved.
    pub fn utilisation(&self) -> Option<f64> {
        (self.reserved.peak > 0).then(|| self.allocated.peak as f64 / self.reserved.peak as f64)
    }
}

/// The memory of one device, or of the host.
#[derive(Default)]
pub struct DeviceLedger {
    /// Every class that is memory of this device together.
    pub all: Totals,
    /// By class number.
    pub classes: BTreeMap<u8, Totals>,
    /// Free room inside a policy's segments.
    pub space: Space,
    /// What the driver's pages can hold beyond what was obtained.
    pub slack: Slack,
    /// What others said of the device.
    pub measurements: Measurements,
    /// Free inside when reserved stood at its peak and the least of it was free.
    pub at_peak: Free,
    pub segments_obtained: u64,
    pub segments_returned: u64,
    /// How often a policy unmapped memory and mapped it elsewhere, and how much; each counts as returned and obtained
    /// above, too.
    pub remaps: u64,
    pub remapped: u64,
    pub failures: u64,
    /// What the driver's pools held last, by class number: reserved, used by graphs.
    pub(super) pools: BTreeMap<u8, (u64, u64)>,
}

/// Free bytes and the largest piece of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    pub bytes: u64,
    pub largest: u64,
}

impl Free {
    /// How much of the free memory lies outside its largest piece: 0 for one piece, towards 1 for dust.
    pub fn fragmentation(self) -> f64 {
        if self.bytes == 0 {
            0.0
        } else {
            1.0 - self.largest as f64 / self.bytes as f64
        }
    }
}

impl DeviceLedger {
    pub fn balance(&self) -> Balance {
        let managed = self.classes.get(&Class::Managed.number());
        Balance {
            requested: self.all.requested.current,
            allocated: self.all.allocated.current,
            reserved: self.all.reserved.current,
            free_inside: self.space.free(),
            slack: self.slack.bytes(),
            managed: managed.map_or(0, |totals| totals.reserved.current),
        }
    }

    pub fn free(&self) -> Free {
        Free {
            bytes: self.space.free(),
            largest: self.space.largest(),
        }
    }

    /// An allocation that was obtained from the layer below, by itself, comes or goes.
    pub(super) fn obtained(&mut self, live: &Live, comes: bool) {
        let counts = live.reserved > 0 && Class::from_number(live.class).is_some_and(Class::is_device_memory);
        let (slack, bytes) = (&mut self.slack, live.reserved);
        match NameSpace::of(live.class) {
            _ if !counts => {}
            NameSpace::Object if comes => slack.add_object(bytes),
            NameSpace::Object => slack.remove_object(bytes),
            NameSpace::Address if comes => slack.add(live.address, bytes),
            NameSpace::Address => slack.remove(live.address, bytes),
            // Physical memory is obtained in whole granules.
            _ => {}
        }
    }

    /// Changes a class and, if its bytes count here, the device's totals.
    pub(super) fn each(&mut self, device: i16, class: u8, change: impl Fn(&mut Totals)) {
        change(self.classes.entry(class).or_default());
        let counts = Class::from_number(class).is_some_and(|class| {
            if device == HOST_DEVICE {
                !matches!(class, Class::Imported | Class::AddressRange)
            } else {
                class.is_device_memory()
            }
        });
        if counts {
            change(&mut self.all);
        }
    }

    /// Called after every event of this device, with what the peak was before it.
    pub(super) fn note_peak(&mut self, peak_before: u64) {
        let reserved = self.all.reserved;
        let free = self.free();
        let higher = reserved.peak > peak_before;
        if higher || (reserved.current == reserved.peak && free.bytes < self.at_peak.bytes) {
            self.at_peak = free;
        }
    }
}

/// One allocation that is live.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub address: u64,
    pub size: u64,
    pub allocated: u64,
    pub reserved: u64,
    pub api: u16,
    pub class: u8,
    pub device: i16,
    pub tid: u32,
    /// As in the record; 0 where the request names none.
    pub stream: u8,
    pub time_ns: u64,
    /// Whether a policy's segment holds it.
    pub(super) in_segment: bool,
}

/// Names that may coincide without being the same thing live in different spaces, as in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NameSpace {
    Address,
    Registered,
    Range,
    Physical,
    Object,
    Imported,
}

impl NameSpace {
    pub(super) fn of(class: u8) -> Self {
        match Class::from_number(class) {
            Some(Class::HostRegistered) => Self::Registered,
            Some(Class::AddressRange) => Self::Range,
            Some(Class::Vmm) => Self::Physical,
            Some(Class::Array | Class::Mipmap) => Self::Object,
            Some(Class::Imported) => Self::Imported,
            _ => Self::Address,
        }
    }
}
