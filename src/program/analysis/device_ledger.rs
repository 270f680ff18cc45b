//! The ledger of one device, or of the host, rebuilt from the events of a journal.
//!
//! A `DeviceLedger` counts allocations and bytes by class. `ledger` reads the records and calls these functions.

use std::collections::{BTreeMap, BTreeSet};

use base::api::Class;
use base::cuda::HOST_DEVICE;
use serde::Serialize;

use super::floors::Floors;
use super::measurements::{Balance, Measurements};
use super::ranges::{Contradiction, Ranges};
use super::slack::Slack;
use super::space::Space;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level {
    pub current: u64,
    pub peak: u64,
}

impl Level {
    /// So many bytes come or go.
    fn count(&mut self, bytes: u64, comes: bool) {
        if comes {
            self.current = self.current.saturating_add(bytes);
            self.peak = self.peak.max(self.current);
        } else {
            self.current = self.current.saturating_sub(bytes);
        }
    }

    /// Applies the change of one summand from `before` to `now` bytes.
    pub(super) fn change(&mut self, before: u64, now: u64) {
        self.count(now.abs_diff(before), now > before);
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    pub requested: Level,
    pub allocated: Level,
    pub reserved: Level,
    /// Allocations made so far, including freed ones.
    pub count: u64,
    #[serde(rename = "live_count")]
    pub live: u64,
    #[serde(skip)]
    pub bytes: u64,
}

impl Totals {
    fn count(&mut self, live: &Live, comes: bool) {
        self.requested.count(live.size, comes);
        self.allocated.count(live.allocated, comes);
        self.reserved.count(live.reserved, comes);
        if comes {
            self.count += 1;
            self.live += 1;
            self.bytes = self.bytes.saturating_add(live.size);
        } else {
            self.live = self.live.saturating_sub(1);
        }
    }

    pub fn utilisation(&self) -> Option<f64> {
        (self.reserved.peak > 0).then(|| self.allocated.peak as f64 / self.reserved.peak as f64)
    }
}

/// Requests for the idle memory of other processes of the account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reclaims {
    /// How often this process asked the others, and bytes that they gave back.
    pub asked: u64,
    pub from_others: u64,
    /// How often this process gave something back for others, and bytes.
    pub given: u64,
    pub for_others: u64,
}

impl Reclaims {
    pub(super) fn add(&mut self, bytes: u64, for_others: bool) {
        let (count, sum) = if for_others {
            (&mut self.given, &mut self.for_others)
        } else {
            (&mut self.asked, &mut self.from_others)
        };
        *count += 1;
        *sum = sum.saturating_add(bytes);
    }
}

#[derive(Default)]
pub struct DeviceLedger {
    pub reclaims: Reclaims,
    /// The sum of all classes that occupy memory of this device.
    pub all: Totals,
    /// The totals of each class, by class number.
    pub classes: BTreeMap<u8, Totals>,
    /// The free ranges inside a policy's segments.
    pub space: Space,
    /// The free ranges inside the segments of a framework's own cache, such as PyTorch's. They lie in `space`, or are
    /// memory of their own.
    pub framework: Space,
    /// The addresses of those that are in private pools.
    pub(super) private: Ranges,
    /// An upper bound for the bytes that the driver's pages occupy beyond the obtained bytes.
    pub slack: Slack,
    pub measurements: Measurements,
    /// When memory was obtained or given back last, tensors aside, in nanoseconds since the journal began.
    pub changed_ns: u64,
    /// The most bytes that were reserved since the last measurement.
    pub since_measured: u64,
    pub segments_obtained: u64,
    pub segments_returned: u64,
    /// How many stitches were made, and how many bytes of addresses they cover now.
    pub stitches: u64,
    pub stitched: u64,
    /// The free ranges of stitches. Their memory is that of segments.
    pub stitch_space: Space,
    /// The bytes of each part of a stitch, and where they lie in a segment, by the part's address.
    pub(super) parts: BTreeMap<u64, (u64, u64)>,
    /// How low the live bytes fall again and again.
    pub floors: Floors,
    pub failed_calls: u64,
    /// The last reported state of the driver's pools, by class number: bytes reserved, and bytes used (0 except for
    /// graphs).
    pub(super) pools: BTreeMap<u8, (u64, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Policy,
    Framework,
    Stitch,
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
            recorded: self.all.reserved.current,
            free_inside: self.free_bytes(),
            slack: self.slack.bytes(),
            managed: managed.map_or(0, |totals| totals.reserved.current),
        }
    }

    pub fn free(&self) -> Free {
        Free {
            bytes: self.free_bytes(),
            largest: self.space.largest().max(self.framework.largest()),
        }
    }

    /// The bytes of `free`, which are known without a search.
    #[inline]
    pub fn free_bytes(&self) -> u64 {
        self.space.free() + self.framework.free()
    }

    /// Free bytes of the framework's cache in private pools.
    pub fn private_bytes(&self) -> u64 {
        if self.private.is_empty() {
            return 0;
        }
        let gaps = self.framework.free_ranges().into_iter();
        gaps.filter(|&(start, _)| self.private.around(start).is_some())
            .map(|(start, end)| end - start)
            .sum()
    }

    /// Bytes that no allocation strategy serves: those of arrays, of the driver's pools, of physical memory and so on.
    pub fn unserved(&self) -> u64 {
        let bytes_of = |class: &u8| {
            let live = self.classes.get(class).map_or(0, |totals| totals.allocated.current);
            self.pools.get(class).map_or(0, |&(reserved, _)| reserved).max(live)
        };
        let classes: BTreeSet<&u8> = self.classes.keys().chain(self.pools.keys()).collect();
        let unserved = (classes.into_iter()).filter(|&&class| counts(0, class) && class != Class::Linear.number());
        unserved.map(bytes_of).fold(0, u64::saturating_add)
    }

    pub fn graphs(&self) -> u64 {
        self.pools.get(&Class::Graph.number()).map_or(0, |&(_, used)| used)
    }

    /// A segment or a part of one comes or goes. Returns how many of its bytes are new, or were there.
    pub(super) fn segment(&mut self, device: i16, owner: Owner, address: u64, size: u64, comes: bool) -> u64 {
        let space = match owner {
            Owner::Policy => &mut self.space,
            Owner::Framework => &mut self.framework,
            Owner::Stitch => &mut self.stitch_space,
        };
        let bytes = if comes {
            space.add_segment(address, size)
        } else {
            space.remove_segment(address, size)
        };
        if owner == Owner::Policy {
            self.segments_obtained += u64::from(comes);
            self.segments_returned += u64::from(!comes);
        }
        match owner {
            Owner::Stitch if comes => {
                self.stitches += 1;
                self.stitched = self.stitched.saturating_add(size);
            }
            Owner::Stitch => {
                let end = address.saturating_add(size).max(address);
                self.parts.extract_if(address..end, |_, _| true).for_each(drop);
                self.stitched = self.stitched.saturating_sub(bytes);
            }
            // The policy has counted its bytes. What contradicts the policy's segments shows there.
            Owner::Framework if self.holds(address) => {
                let change = if comes { Space::occupy } else { Space::release };
                let _ = self.change_space(address, bytes, change);
            }
            Owner::Policy | Owner::Framework => {
                self.slack.change(address, bytes, comes);
                self.each(device, Class::Linear.number(), |totals| {
                    totals.reserved.count(bytes, comes)
                });
            }
        }
        bytes
    }

    pub(super) fn holds(&self, address: u64) -> bool {
        self.space.holds(address) || self.stitch_space.holds(address)
    }

    /// Takes a block out of the free memory that it lies in.
    pub(super) fn occupy(&mut self, address: u64, length: u64) -> Result<(), Contradiction> {
        self.change_space(address, length, Space::occupy)
    }

    pub(super) fn release(&mut self, address: u64, length: u64) -> Result<(), Contradiction> {
        self.change_space(address, length, Space::release)
    }

    /// Applies `change` to a block where it is, and at its home if it lies in a stitch whose parts were not lost.
    fn change_space(
        &mut self,
        address: u64,
        length: u64,
        change: impl Fn(&mut Space, u64, u64) -> Result<(), Contradiction>,
    ) -> Result<(), Contradiction> {
        if !self.stitch_space.holds(address) {
            return change(&mut self.space, address, length);
        }
        change(&mut self.stitch_space, address, length)?;
        let mut homes = self.homes(address, length).unwrap_or_default().into_iter();
        homes.try_for_each(|(home, bytes)| change(&mut self.space, home, bytes))
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

    /// Where the bytes of a block lie in segments: addresses and lengths. A block in a stitch lies in several places.
    pub fn places(&self, address: u64, length: u64) -> Vec<(u64, u64)> {
        if self.stitch_space.holds(address) {
            self.homes(address, length).unwrap_or_default()
        } else {
            vec![(address, length)]
        }
    }

    /// An allocation comes or goes: updates the totals, and `slack` if its call obtained memory or gave it back.
    pub(super) fn count(&mut self, live: &Live, comes: bool) {
        self.each(live.device, live.class, |totals| totals.count(live, comes));
        let is_memory = Class::from_number(live.class).is_some_and(Class::is_device_memory);
        match NameSpace::of(live.class) {
            _ if live.reserved == 0 || !is_memory => {}
            NameSpace::Object => self.slack.change_object(live.reserved, comes),
            NameSpace::Address => self.slack.change(live.address, live.reserved, comes),
            // Physical memory (VMM) comes in whole granules, so no page is covered in part. The other kinds are no
            // device memory.
            _ => {}
        }
    }

    /// Applies `change` to the totals of a class and, if the class occupies memory of this device, to the totals of the
    /// device.
    pub(super) fn each(&mut self, device: i16, class: u8, change: impl Fn(&mut Totals)) {
        change(self.classes.entry(class).or_default());
        if counts(device, class) {
            change(&mut self.all);
        }
    }
}

/// Whether memory of a class counts towards the totals of a device, or of the host.
pub fn counts(device: i16, class: u8) -> bool {
    Class::from_number(class).is_some_and(|class| match device {
        HOST_DEVICE => !matches!(class, Class::Imported | Class::AddressRange),
        _ => class.is_device_memory(),
    })
}

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
    /// `Record.stack`
    pub stack: u32,
    pub time_ns: u64,
    /// The slot of the record. Time and slot together tell which of two allocations came first.
    pub slot: u64,
    /// What the ledger took for the allocation, and must give back with it.
    pub(super) taken: Taken,
}

impl Live {
    pub fn counts(&self) -> bool {
        counts(self.device, self.class)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Nothing,
    /// Addresses in a policy's segment or stitch.
    InSegment,
    /// Addresses in a segment of a framework's cache.
    InFramework,
    /// Addresses of its own.
    Direct,
}

/// The kind of an allocation's handle. Handles of different kinds may have equal values, so the ledger's keys contain
/// the kind. The library's ledger does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameSpace {
    Address,
    Registered,
    Range,
    Physical,
    Object,
    Imported,
}

impl NameSpace {
    pub fn of(class: u8) -> Self {
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
