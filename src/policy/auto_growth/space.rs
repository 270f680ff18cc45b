//! Reserved address space.

use std::collections::BTreeMap;

/// The largest alignment of a block in bytes.
pub(super) const LARGEST_ALIGNMENT: u64 = 2 << 20;
/// The largest range, in bytes: units are counted in 32 bits, and the sizes of two neighbours are added.
pub(super) const LARGEST_RANGE: u64 = 1 << 40;

/// Addresses for stitches.
#[derive(Default)]
pub struct Space {
    /// First address and bytes of what was reserved.
    pub ranges: Vec<(u64, u64)>,
    /// First address and bytes of what is not in use.
    vacant: BTreeMap<u64, u64>,
}

impl Space {
    pub fn add(&mut self, address: u64, bytes: u64) {
        self.ranges.push((address, bytes));
        self.vacant.insert(address, bytes);
    }

    pub fn is_vacant(&self) -> bool {
        let range = |address| self.vacant.get(address);
        self.ranges.iter().all(|(address, bytes)| range(address) == Some(bytes))
    }

    /// The lowest vacant addresses that are enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&address, &vacant) = self.vacant.iter().find(|&(_, &vacant)| vacant >= bytes)?;
        self.vacant.remove(&address);
        if vacant > bytes {
            self.vacant.insert(address + bytes, vacant - bytes);
        }
        Some(address)
    }

    pub fn give(&mut self, address: u64, bytes: u64) {
        let (mut address, mut bytes) = (address, bytes);
        // Two ranges that happen to be side by side stay two: no mapping may reach from one into the other.
        let begins_range = |at: u64| self.ranges.iter().any(|&(start, _)| start == at);
        let end = address + bytes;
        if !begins_range(end)
            && let Some(after) = self.vacant.remove(&end)
        {
            bytes += after;
        }
        let before = self.vacant.range(..address).next_back();
        if !begins_range(address)
            && let Some((&start, &vacant)) = before
            && start + vacant == address
        {
            (address, bytes) = (start, bytes + vacant);
        }
        self.vacant.insert(address, bytes);
    }
}
