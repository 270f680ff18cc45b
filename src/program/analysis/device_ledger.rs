//! The ledger of one device, or of the host, rebuilt from the events of a journal.
//!
//! A `DeviceLedger` counts allocations and bytes by class. `ledger` reads the records and calls these functions.

use std::collections::BTreeMap;

use base::api::Class;
use base::cuda::HOST_DEVICE;

use super::measurements::{Balance, Measurements};
use super::slack::Slack;
use super::space::{Contradiction, Space};

/// A number of bytes: the current value, and the highest value so far.
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

    /// Applies the change of one summand from `before` to `now` bytes.
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
    /// Allocations made so far, including freed ones.
    pub count: u64,
    pub live: u64,
    /// Requested bytes of all allocations made so far.
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

    /// Peak allocated bytes divided by peak reserved bytes.
    pub fn utilisation(&self) -> Option<f64> {
        (self.reserved.peak > 0).then(|| self.allocated.peak as f64 / self.reserved.peak as f64)
    }
}

/// The memory of one device, or of the host.
#[derive(Default)]
pub struct DeviceLedger {
    /// The sum of all classes that occupy memory of this device.
    pub all: Totals,
    /// The totals of each class, by class number.
    pub classes: BTreeMap<u8, Totals>,
    /// The free ranges inside a policy's segments.
    pub space: Space,
    /// An upper bound for the bytes that the driver's pages occupy beyond the obtained bytes.
    pub slack: Slack,
    /// What the next layer and NVML reported about the device.
    pub measurements: Measurements,
    /// The most bytes that were reserved since the last measurement.
    pub since_measured: u64,
    /// The free memory inside segments while reserved was at its peak, at the moment with the fewest free bytes.
    pub at_peak: Free,
    pub segments_obtained: u64,
    pub segments_returned: u64,
    /// How many stitches were made, and how many bytes of addresses they cover now.
    pub stitches: u64,
    pub stitched: u64,
    /// The free ranges of stitches. Their memory is that of segments.
    pub stitch_space: Space,
    /// The bytes of each part of a stitch, and where they lie in a segment, by the part's address.
    parts: BTreeMap<u64, (u64, u64)>,
    /// Bytes of blocks in stitches whose parts are not known, because the journal is older than these records.
    unplaced: u64,
    pub failures: u64,
    /// The last reported state of the driver's pools, by class number: bytes reserved, and bytes used (0 except for
    /// graphs).
    pub(super) pools: BTreeMap<u8, (u64, u64)>,
}

/// Free bytes, and the size of the largest contiguous free range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    pub bytes: u64,
    pub largest: u64,
}

impl Free {
    /// The share of the free bytes that lies outside the largest free range. With one range the share is 0; with many
    /// small ranges it is close to 1.
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
            free_inside: self.free().bytes,
            slack: self.slack.bytes(),
            managed: managed.map_or(0, |totals| totals.reserved.current),
        }
    }

    /// In older journals it is not known which bytes of the segments a block in a stitch takes, only how many. The largest
    /// free range can then be too large.
    pub fn free(&self) -> Free {
        let bytes = self.space.free().saturating_sub(self.unplaced);
        Free {
            bytes,
            largest: self.space.largest().min(bytes),
        }
    }

    /// Whether the address lies in a policy's memory.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.space.holds(address) || self.stitch_space.holds(address)
    }

    /// Takes a block out of the free memory that it lies in.
    pub(super) fn occupy(&mut self, address: u64, length: u64) -> Result<(), Contradiction> {
        if !self.stitch_space.holds(address) {
            return self.space.occupy(address, length);
        }
        self.stitch_space.occupy(address, length)?;
        match self.homes(address, length) {
            Some(homes) => homes
                .into_iter()
                .try_for_each(|(home, bytes)| self.space.occupy(home, bytes)),
            None => {
                self.unplaced = self.unplaced.saturating_add(length);
                Ok(())
            }
        }
    }

    /// Makes an occupied block free.
    pub(super) fn release(&mut self, address: u64, length: u64) -> Result<(), Contradiction> {
        if !self.stitch_space.holds(address) {
            return self.space.release(address, length);
        }
        self.stitch_space.release(address, length)?;
        match self.homes(address, length) {
            Some(homes) => homes
                .into_iter()
                .try_for_each(|(home, bytes)| self.space.release(home, bytes)),
            None => {
                self.unplaced = self.unplaced.saturating_sub(length);
                Ok(())
            }
        }
    }

    /// Where the bytes of a range in a stitch lie in segments: addresses and lengths. `None` if that is not known.
    fn homes(&self, address: u64, length: u64) -> Option<Vec<(u64, u64)>> {
        let (mut at, end) = (address, address.checked_add(length)?);
        let mut homes = Vec::new();
        while at < end {
            let (&part, &(bytes, home)) = self.parts.range(..=at).next_back()?;
            let skip = at - part;
            let here = bytes.checked_sub(skip).filter(|&left| left > 0)?.min(end - at);
            homes.push((home.checked_add(skip)?, here));
            at += here;
        }
        Some(homes)
    }

    pub(super) fn add_part(&mut self, address: u64, size: u64, home: u64) {
        self.parts.insert(address, (size, home));
    }

    /// Removes the stitches in this range. Returns how many of its bytes lay in stitches.
    pub(super) fn remove_stitch(&mut self, address: u64, size: u64) -> u64 {
        let end = address.saturating_add(size);
        self.parts.retain(|part, _| !(address..end).contains(part));
        self.stitch_space.remove_segment(address, size)
    }

    /// Updates `slack` when memory for one allocation was obtained from the next layer (`comes` is true) or given back.
    pub(super) fn obtained(&mut self, live: &Live, comes: bool) {
        let counts = live.reserved > 0 && Class::from_number(live.class).is_some_and(Class::is_device_memory);
        let (slack, bytes) = (&mut self.slack, live.reserved);
        match NameSpace::of(live.class) {
            _ if !counts => {}
            NameSpace::Object if comes => slack.add_object(bytes),
            NameSpace::Object => slack.remove_object(bytes),
            NameSpace::Address if comes => slack.add(live.address, bytes),
            NameSpace::Address => slack.remove(live.address, bytes),
            // Physical memory (VMM) comes in whole granules, so no page is covered in part. The other kinds are no
            // device memory.
            _ => {}
        }
    }

    /// Applies `change` to the totals of a class and, if the class occupies memory of this device, to the totals of the
    /// device.
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

    /// Updates `at_peak` after an event of this device. `peak_before` is the peak of reserved before the event.
    pub(super) fn note_peak(&mut self, peak_before: u64) {
        let reserved = self.all.reserved;
        self.since_measured = self.since_measured.max(reserved.current);
        let free = self.free();
        let higher = reserved.peak > peak_before;
        if higher || (reserved.current == reserved.peak && free.bytes < self.at_peak.bytes) {
            self.at_peak = free;
        }
    }
}

/// A live allocation.
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
    /// The stream's number in the record; 0 if the request names no stream.
    pub stream: u8,
    pub time_ns: u64,
    /// Whether the allocation lies in a policy's segment.
    pub(super) in_segment: bool,
}

/// The kind of an allocation's handle. Handles of different kinds may have equal values, so the ledger's keys contain
/// the kind. The library's ledger does the same.
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
