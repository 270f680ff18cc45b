//! The handles of physical memory, and where each is mapped at home.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::arena::Claim;
use crate::holdings::VirtualMemory;
use crate::request::UNIT;

/// Physical memory that is mapped at home and accessible.
#[derive(Debug)]
pub struct Handle {
    pub bytes: u64,
    /// The driver's name of it, which is not 0.
    pub name: u64,
    /// How many works under way need the handle. While any does, the handle is not given back.
    pub holds: u32,
    /// The number of the newest stitch when the handle came.
    pub newest_stitch: u64,
}

/// Physical memory that could be neither used nor given back. Its place at home stays claimed.
#[derive(Debug)]
pub struct Left {
    pub home: u64,
    pub bytes: u64,
    pub name: u64,
    pub is_mapped: bool,
    pub claim: Claim,
}

/// A handle is large if it has more than this part of the device's memory, or more than so many bytes.
const SHARE_OF_COMMON: u64 = 128;
const MOST_COMMON: u64 = 256 << 20;

#[derive(Default)]
pub struct Handles {
    /// By first address at home.
    pub by_home: BTreeMap<u64, Handle>,
    pub left: Vec<Left>,
    /// A handle is large if it has more bytes than this, a multiple of the granule.
    pub largest_common: u64,
    /// How many handles are large.
    large: usize,
}

impl Handles {
    /// `granule` and the device's memory in bytes; 0 if that is not known.
    pub fn new(granule: u64, total: u64) -> Self {
        let share = match total {
            0 => MOST_COMMON,
            _ => total / SHARE_OF_COMMON,
        };
        Handles {
            largest_common: (share.min(MOST_COMMON) / granule * granule).max(granule),
            ..Handles::default()
        }
    }

    pub fn insert(&mut self, home: u64, handle: Handle) {
        self.large += usize::from(self.is_large(&handle));
        self.by_home.insert(home, handle);
    }

    pub fn remove(&mut self, home: u64) {
        let removed = self.by_home.remove(&home);
        self.large -= usize::from(removed.is_some_and(|handle| self.is_large(&handle)));
    }

    fn is_large(&self, handle: &Handle) -> bool {
        handle.bytes > self.largest_common
    }

    pub fn has_large(&self) -> bool {
        self.large > 0
    }

    /// Whether a large handle has a byte in a range at home.
    pub fn has_large_in(&self, range: Range<u64>) -> bool {
        self.in_range(range).any(|(_, handle)| self.is_large(handle))
    }

    /// The handles that have a byte in a range at home: first address and handle.
    pub fn in_range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Handle)> {
        let first = self.by_home.range(..=range.start).next_back();
        let first = first.filter(|&(&home, handle)| home + handle.bytes > range.start);
        let from = first.map_or(range.start, |(&home, _)| home);
        self.by_home
            .range(from..range.end.max(from))
            .map(|(&home, handle)| (home, handle))
    }

    /// The handle that holds the address at home: first address and handle.
    pub fn at(&self, address: u64) -> Option<(u64, &Handle)> {
        self.in_range(address..address + UNIT).next()
    }

    pub fn hold(&mut self, home: u64) {
        if let Some(handle) = self.by_home.get_mut(&home) {
            handle.holds += 1;
        }
    }

    pub fn let_go(&mut self, home: u64) {
        if let Some(handle) = self.by_home.get_mut(&home) {
            handle.holds -= 1;
        }
    }

    /// Bytes that are reserved and at no place of the arena.
    pub fn left_bytes(&self) -> u64 {
        self.left.iter().map(|left| left.bytes).sum()
    }

    pub fn add_to(&self, held: &mut VirtualMemory) {
        for (&home, handle) in &self.by_home {
            held.mapped.push((home, handle.bytes));
            held.handles.push(handle.name);
        }
        for left in &self.left {
            held.handles.push(left.name);
            held.mapped.extend(left.is_mapped.then_some((left.home, left.bytes)));
        }
    }
}
