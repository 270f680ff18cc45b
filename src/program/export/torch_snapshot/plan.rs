//! Which segments can be shown as PyTorch's plain segments, and which only as parts of an expandable one.
//!
//! A plain segment is obtained and given back in one piece, and no block crosses its end. MemoryViz draws its size
//! over time. Where a policy gave back a part of a segment, or a block lies in two segments that touch, the snapshot
//! shows one expandable segment that is mapped and unmapped in pieces, as PyTorch does for its own.

use std::collections::BTreeMap;

use base::api::Class;
use journal::format::{Event, Record};

use crate::analysis::space::Ranges;

/// The plan of one device.
#[derive(Default)]
pub struct Plan {
    /// The segments now.
    segments: BTreeMap<u64, u64>,
    /// All addresses at which there ever was a segment.
    ever: Ranges,
    /// Addresses in segments that are not plain.
    irregular: Vec<u64>,
    /// The ranges of `ever` with an irregular address, in order.
    expandable: Vec<(u64, u64)>,
}

impl Plan {
    /// Looks at one record of the device.
    pub fn look(&mut self, record: &Record) {
        match record.event {
            Event::SegmentAlloc {
                address,
                size,
                again: false,
            } => {
                if self.cut(address, size) {
                    self.irregular.push(address);
                }
                self.segments.insert(address, size);
                self.cover(address, size);
            }
            Event::SegmentFree {
                address,
                size,
                again: false,
                ..
            } => {
                if self.segments.get(&address) != Some(&size) {
                    self.irregular.push(address);
                }
                self.cut(address, size);
            }
            Event::Alloc(one) if one.class != Class::Vmm.into() => {
                let own = one.reserved.unwrap_or(0).max(one.allocated);
                if one.reserved.is_some() || !self.place(one.address, one.allocated) {
                    self.cover(one.address, own);
                }
            }
            // The blocks of a stitch lie in these places.
            Event::StitchPart { size, home, .. } => drop(self.place(home, size)),
            Event::Map { address, size, .. } => self.cover(address, size),
            _ => {}
        }
    }

    /// Notes where a block lies. False if that is in no segment.
    fn place(&mut self, address: u64, size: u64) -> bool {
        let around = self.segments.range(..=address).next_back();
        let end = around.map(|(&start, &size)| start.saturating_add(size)).unwrap_or(0);
        if address < end && address.saturating_add(size) > end {
            self.irregular.push(address);
        }
        address < end
    }

    fn cover(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let known = self.ever.around(address).is_some_and(|(_, known)| end <= known);
        if !known {
            self.ever.cut(address, end);
            self.ever.insert_joined(address, end);
        }
    }

    /// Removes what the segments have of a range. True if there was something.
    fn cut(&mut self, address: u64, size: u64) -> bool {
        let end = address.saturating_add(size);
        let mut found = false;
        while let Some((&start, &length)) = self.segments.range(..end).next_back() {
            let old_end = start.saturating_add(length);
            if old_end <= address {
                break;
            }
            found = true;
            self.segments.remove(&start);
            if end < old_end {
                self.segments.insert(end, old_end - end);
            }
            if start < address {
                self.segments.insert(start, address - start);
                break;
            }
        }
        found
    }

    /// All records have been looked at.
    pub fn settle(&mut self) {
        self.irregular.sort_unstable();
        let irregular = std::mem::take(&mut self.irregular);
        for address in irregular {
            if self.is_expandable(address) {
                continue;
            }
            self.expandable.extend(self.ever.around(address));
        }
        self.ever = Ranges::default();
        self.segments = BTreeMap::new();
    }

    /// Whether the segment at this address is a part of an expandable one.
    pub fn is_expandable(&self, address: u64) -> bool {
        let after = self.expandable.partition_point(|&(start, _)| start <= address);
        after > 0 && address < self.expandable[after - 1].1
    }
}
