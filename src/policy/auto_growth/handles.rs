//! The handles of physical memory, and where each is mapped at home.

use std::collections::BTreeMap;
use std::ops::Range;

use super::mapping::{Released, Stage};
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
}

#[derive(Default)]
pub struct Handles {
    /// By first address at home.
    pub by_home: BTreeMap<u64, Handle>,
    /// Physical memory that could be neither used nor given back. Its place at home stays claimed.
    pub(super) left: Vec<Released>,
}

impl Handles {
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
            held.mapped
                .extend((left.stage == Stage::Mapped).then_some((left.home, left.bytes)));
        }
    }
}
