//! Segments cut into blocks: best fit over (size, address), split, coalesced within a segment.
//!
//! Freeing is a synchronisation: `cuMemFree` waits for the work that uses the memory, and a policy that keeps the block
//! does not. So a freed block is *dirty*, stamped with the epoch of its free, until the context was synchronised once
//! after that; one synchronisation cleans every block freed before it. A dirty block is never handed out, and while a
//! stream capture is open, when synchronising would break the capture, only clean blocks are.

use std::collections::BTreeMap;

use super::{Block, Statistics};
use crate::device_memory::{DeviceMemory, DriverError};

/// Every block begins and ends at a multiple of this. CUDA promises 256 bytes; PyTorch counts on 512.
pub const ALIGNMENT: u64 = 512;

/// `size` rounded up to the alignment.
pub fn aligned(size: u64) -> Result<u64, DriverError> {
    match size {
        0 => Err(DriverError::INVALID_VALUE),
        _ => size
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(DriverError::OUT_OF_MEMORY),
    }
}

/// Which end of a free block a request gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Head,
    Tail,
}

#[derive(Clone, Copy)]
struct Span {
    size: u64,
    /// First address of the segment it lies in: spans of two segments are never joined, even where they touch.
    segment: u64,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Live {
        requested: u64,
    },
    /// `epoch` of the newest free that is part of it; 0 for memory that was never used.
    Free {
        epoch: u64,
    },
}

#[derive(Default)]
pub struct Arena {
    /// Every block, live or free, by address: physical neighbours are neighbours here.
    spans: BTreeMap<u64, Span>,
    /// The free ones as (size, address) -> epoch.
    free: BTreeMap<(u64, u64), u64>,
    /// First address -> bytes.
    segments: BTreeMap<u64, u64>,
    /// Epoch that a block freed now is stamped with. A synchronisation ends it.
    epoch: u64,
    /// Blocks with an epoch up to this one are clean.
    clean_epoch: u64,
    reserved: u64,
    allocated: u64,
    live_blocks: usize,
}

impl Arena {
    pub fn new() -> Self {
        Arena {
            epoch: 1,
            ..Arena::default()
        }
    }

    /// Asks the layer below for a segment, which is one free, clean block; returns its address.
    pub fn obtain(&mut self, memory: &dyn DeviceMemory, size: u64) -> Result<u64, DriverError> {
        let address = memory.allocate(size)?;
        self.segments.insert(address, size);
        self.reserved += size;
        self.insert_free(address, size, address, 0);
        Ok(address)
    }

    fn insert_free(&mut self, address: u64, size: u64, segment: u64, epoch: u64) {
        self.spans.insert(
            address,
            Span {
                size,
                segment,
                state: State::Free { epoch },
            },
        );
        self.free.insert((size, address), epoch);
    }

    /// A block from the free ones, cut to `size` (a multiple of the alignment). `Ok(None)` where none fits, or none may
    /// be used now.
    pub fn take(
        &mut self,
        memory: &dyn DeviceMemory,
        requested: u64,
        size: u64,
        end: End,
    ) -> Result<Option<Block>, DriverError> {
        let Some((&(found, address), &epoch)) = self.free.range((size, 0)..).next() else {
            return Ok(None);
        };
        if epoch <= self.clean_epoch {
            return Ok(self.cut(found, address, requested, size, end));
        }
        if memory.may_synchronise() {
            memory.synchronise()?;
            self.clean_epoch = self.epoch;
            self.epoch += 1;
            return Ok(self.cut(found, address, requested, size, end));
        }
        let clean = self
            .free
            .range((size, 0)..)
            .find(|&(_, &epoch)| epoch <= self.clean_epoch)
            .map(|(&key, _)| key);
        Ok(clean.and_then(|(found, address)| self.cut(found, address, requested, size, end)))
    }

    fn cut(&mut self, found: u64, address: u64, requested: u64, size: u64, end: End) -> Option<Block> {
        let epoch = self.free.remove(&(found, address))?;
        let segment = self.spans.remove(&address)?.segment;
        let rest = found - size;
        let at = if end == End::Tail { address + rest } else { address };
        if rest > 0 {
            let rest_at = if end == End::Tail { address } else { address + size };
            self.insert_free(rest_at, rest, segment, epoch);
        }
        self.spans.insert(
            at,
            Span {
                size,
                segment,
                state: State::Live { requested },
            },
        );
        self.allocated += size;
        self.live_blocks += 1;
        Some(Block {
            address: at,
            requested,
            allocated: size,
        })
    }

    /// Frees the live block that begins at `address`, joined with its free neighbours; also the segment it lies in.
    pub fn free(&mut self, address: u64) -> Option<(Block, u64)> {
        let &Span {
            size,
            segment,
            state: State::Live { requested },
        } = self.spans.get(&address)?
        else {
            return None;
        };
        self.spans.remove(&address);
        self.allocated -= size;
        self.live_blocks -= 1;
        let (mut start, mut length, mut epoch) = (address, size, self.epoch);
        if let Some((size, newest)) = self.unlink_free(address + size, segment) {
            length += size;
            epoch = epoch.max(newest);
        }
        let left = self
            .spans
            .range(..address)
            .next_back()
            .map(|(&left, span)| (left, span.size));
        if let Some((left, left_size)) = left
            && left + left_size == address
            && let Some((size, newest)) = self.unlink_free(left, segment)
        {
            start = left;
            length += size;
            epoch = epoch.max(newest);
        }
        self.insert_free(start, length, segment, epoch);
        Some((
            Block {
                address,
                requested,
                allocated: size,
            },
            segment,
        ))
    }

    /// Takes the free block of `segment` at `address` out of both indices; its size and epoch.
    fn unlink_free(&mut self, address: u64, segment: u64) -> Option<(u64, u64)> {
        let &Span {
            size,
            segment: its,
            state: State::Free { epoch },
        } = self.spans.get(&address)?
        else {
            return None;
        };
        if its != segment {
            return None;
        }
        self.spans.remove(&address);
        self.free.remove(&(size, address));
        Some((size, epoch))
    }

    /// Whether the segment that begins at `address` holds no live block.
    pub fn is_idle(&self, address: u64) -> bool {
        let whole = self.segments.get(&address);
        whole.is_some_and(|&whole| {
            self.spans
                .get(&address)
                .is_some_and(|span| span.size == whole && matches!(span.state, State::Free { .. }))
        })
    }

    /// Gives an idle segment back; returns its bytes, 0 where it is not idle or the layer below will not take it.
    pub fn release(&mut self, memory: &dyn DeviceMemory, address: u64) -> u64 {
        if !self.is_idle(address) || memory.free(address).is_err() {
            return 0;
        }
        let Some(size) = self.segments.remove(&address) else {
            return 0;
        };
        self.spans.remove(&address);
        self.free.remove(&(size, address));
        self.reserved -= size;
        size
    }

    pub fn release_idle(&mut self, memory: &dyn DeviceMemory) -> u64 {
        let idle: Vec<u64> = self
            .segments
            .keys()
            .copied()
            .filter(|&address| self.is_idle(address))
            .collect();
        idle.into_iter().map(|address| self.release(memory, address)).sum()
    }

    pub fn find(&self, address: u64) -> Option<Block> {
        let (&start, span) = self.spans.range(..=address).next_back()?;
        match span.state {
            State::Live { requested } if address - start < span.size => Some(Block {
                address: start,
                requested,
                allocated: span.size,
            }),
            _ => None,
        }
    }

    pub fn owns(&self, address: u64) -> bool {
        let segment = self.segments.range(..=address).next_back();
        segment.is_some_and(|(&start, &size)| address - start < size)
    }

    pub fn statistics(&self) -> Statistics {
        Statistics {
            reserved: self.reserved,
            allocated: self.allocated,
            free: self.reserved - self.allocated,
            largest_free_block: self.free.last_key_value().map_or(0, |(&(size, _), _)| size),
            segments: self.segments.len(),
            live_blocks: self.live_blocks,
        }
    }
}
