//! The device as the threads of a worker share it: blocks of each kind of memory, the patterns in them, and what the
//! books say.
//!
//! Each page of a block has one word all over it, which no other page has. So a block whose pages were mapped in a wrong
//! order is noticed.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::Ordering::Relaxed;

use base::stats::Stats;
use base::sync::lock;

use super::{Site, Thread};
use crate::analysis::host::Host;
use crate::analysis::slack::{PAGE, Slack};
use crate::driver::{Access, Location, Properties, call};
use crate::render::format;
use crate::stress::compare::{Rest, ask_nvml};
use crate::stress::outcome::{Fault, FaultKind, Kind};

/// Of the memory of the worker, this share is in live blocks at most. The rest is for what a strategy keeps.
const LIVE_PERCENT: u64 = 75;
/// Blocks up to this size are read back as a whole, longer ones in windows.
pub const WHOLE_BYTES: usize = 1 << 20;
const WINDOW_BYTES: usize = 4 << 10;
const WINDOWS: u64 = 16;
const WORD_BYTES: u64 = 4;
/// Makes numbers that follow one another differ in all bits (2 to the power of 32, divided by the golden ratio).
const SPREAD: u32 = 0x9e37_79b1;

/// A live block.
#[derive(Debug)]
pub struct Block {
    kind: Kind,
    pub address: u64,
    pub size: u64,
    pub word: u32,
    handle: u64,
}

impl Block {
    /// Bytes of whole words. What is behind them is not written.
    pub fn written(&self) -> u64 {
        self.size / WORD_BYTES * WORD_BYTES
    }

    /// The word at an offset.
    fn expected(&self, offset: u64) -> u32 {
        self.word ^ ((offset / PAGE) as u32).wrapping_mul(SPREAD)
    }

    /// The first offset at which the words, which begin at `from`, differ from the pattern, and what is there.
    fn first_difference(&self, from: u64, words: &[u32]) -> Option<(u64, u32)> {
        let mut places = (from..).step_by(WORD_BYTES as usize).zip(words.iter().copied());
        places.find(|(offset, word)| self.expected(*offset) != *word)
    }
}

impl Site {
    /// The library's figures of the device, in all or of one class.
    fn stats(&self, class: Option<&str>) -> Stats {
        let (mut stats, device) = (Stats::default(), self.order.device);
        match class {
            None => call!(self.ours, vramshim_stats(device => c_int, &mut stats => &mut Stats)),
            Some(class) => {
                let name = CString::new(class).unwrap_or_default();
                call!(self.ours, vramshim_class_stats(
                    device => c_int, name.as_ptr() => *const c_char, &mut stats => &mut Stats
                ))
            }
        };
        stats
    }

    /// The most bytes that a worker takes in one piece.
    pub fn largest(&self) -> u64 {
        self.order.memory / 8
    }

    /// Whether a block of this size may be taken. If it may, it counts as live from now on.
    fn claim(&self, bytes: u64) -> bool {
        let before = self.live_bytes.fetch_add(bytes, Relaxed);
        let fits = before + bytes <= self.order.memory / 100 * LIVE_PERCENT && {
            let stats = self.stats(None);
            // What a strategy keeps free serves the request, in one piece or in several that it maps side by side.
            stats.free_inside >= bytes.saturating_mul(2) || stats.reserved + bytes <= self.order.memory
        };
        if !fits {
            self.live_bytes.fetch_sub(bytes, Relaxed);
        }
        fits
    }
}

impl Thread {
    /// Takes a block. `None` if the worker may not hold it now, or the device has no room.
    pub fn take(&self, kind: Kind, bytes: u64) -> Result<Option<Block>, Fault> {
        let order = &self.site.order;
        let size = if kind == Kind::Mapped {
            bytes.next_multiple_of(order.granule)
        } else {
            bytes
        };
        if !self.site.claim(size) {
            return Ok(None);
        }
        let word = {
            let blocks = &mut lock(&self.site.outcome).blocks;
            *blocks += 1;
            (*blocks as u32).wrapping_mul(SPREAD) ^ order.seed as u32
        };
        let mut block = Block {
            kind,
            address: 0,
            size,
            word,
            handle: 0,
        };
        if let Err(fault) = self.obtain(&mut block) {
            self.site.live_bytes.fetch_sub(size, Relaxed);
            return self.refused(fault, size).map(|()| None);
        }
        let end = block.address.saturating_add(size);
        let mut ranges = lock(&self.site.ranges);
        if let Some((start, (other, of))) = ranges
            .range(..end)
            .next_back()
            .filter(|(_, (other, _))| *other > block.address)
        {
            let words = format!(
                "{} handed out {:#x} to {end:#x}, but {start:#x} to {other:#x} of {} is live",
                kind.call(),
                block.address,
                of.call()
            );
            return Err(Fault::new(FaultKind::HandedOutTwice, words).in_call(kind.call()));
        }
        ranges.insert(block.address, (end, kind));
        Ok(Some(block))
    }

    fn obtain(&self, block: &mut Block) -> Result<(), Fault> {
        let (bytes, size, out) = (block.size, block.size as usize, &mut block.address);
        match block.kind {
            Kind::Linear => return self.alloc(bytes, out, size),
            Kind::Async => return self.alloc_async(bytes, out, size, self.stream),
            Kind::Mapped => {}
        }
        let location = Location {
            kind: 1,
            id: self.site.order.device,
        };
        let access = Access { location, rights: 3 };
        self.create(bytes, &mut block.handle, size, &Properties::on(location), 0)?;
        // Memory that another call refuses is given back, because a refusal is no fault while the device is full.
        let undone = |fault, undo: Result<(), Fault>| undo.and(Err(fault));
        let reserved = self.reserve(bytes, out, size, 0, 0, 0).and_then(|()| {
            let mapped = self.map(bytes, *out, size, 0, block.handle, 0).and_then(|()| {
                let set = self.set_access(bytes, *out, size, &access, 1);
                set.or_else(|fault| undone(fault, self.unmap(0, *out, size)))
            });
            mapped.or_else(|fault| undone(fault, self.unreserve(0, *out, size)))
        });
        reserved.or_else(|fault| undone(fault, self.release(0, block.handle)))
    }

    /// A request was refused. That is a fault if the device has plenty of free memory.
    fn refused(&self, mut fault: Fault, bytes: u64) -> Result<(), Fault> {
        /// `CUDA_ERROR_OUT_OF_MEMORY`
        const OUT_OF_MEMORY: i32 = 2;
        const PLENTY_BYTES: u64 = 64 << 20;
        if fault.code != Some(OUT_OF_MEMORY) {
            return Err(fault);
        }
        let (free, _) = self.free_memory()?;
        if free >= bytes.saturating_mul(2).saturating_add(PLENTY_BYTES) {
            fault.kind = FaultKind::NoMemory;
            fault.words += &format!(", while the device has {} free", format::size(free));
            return Err(fault);
        }
        lock(&self.site.outcome).refused += 1;
        Ok(())
    }

    /// Writes the pattern of the block. Returns before it is done.
    pub fn fill(&self, block: &Block) -> Result<(), Fault> {
        for offset in (0..block.written()).step_by(PAGE as usize) {
            let words = (block.written() - offset).min(PAGE) / WORD_BYTES;
            self.fill_words(
                0,
                block.address + offset,
                block.expected(offset),
                words as usize,
                self.stream,
            )?;
        }
        Ok(())
    }

    /// Reads the block back, all of it or parts of it, and compares it with its pattern.
    pub fn check(&mut self, block: &Block) -> Result<(), Fault> {
        let (mut length, mut offsets) = (block.written() as usize, vec![0]);
        if length > WHOLE_BYTES {
            let last = block.written() - WINDOW_BYTES as u64;
            offsets.extend((1..WINDOWS).map(|_| self.random.u64(..last) / WORD_BYTES * WORD_BYTES));
            (length, offsets[1]) = (WINDOW_BYTES, last);
        }
        for offset in offsets {
            let to = self.buffer.as_mut_ptr().cast();
            self.read(0, to, block.address + offset, length, self.stream)?;
            self.wait_stream(0, self.stream)?;
            lock(&self.site.outcome).bytes_checked += length as u64;
            if let Some((at, found)) = block.first_difference(offset, &self.buffer[..length / WORD_BYTES as usize]) {
                let (begin, end, call) = (block.address, block.address + block.size, block.kind.call());
                let words = format!(
                    "the block {begin:#x} to {end:#x} of {call} lost what was written: at byte {at} is {found:#010x}, not \
                     {:#010x}",
                    block.expected(at)
                );
                return Err(Fault::new(FaultKind::BytesChanged, words).in_call(call));
            }
        }
        Ok(())
    }

    /// Frees a block. Its work is on the stream; a free of linear memory waits for this work, and all other calls here are
    /// made after it.
    pub fn give_back(&self, block: Block) -> Result<(), Fault> {
        let (bytes, size) = (block.size, block.size as usize);
        if block.kind == Kind::Mapped {
            self.wait_stream(0, self.stream)?;
        }
        // Before the free: from then on another thread may get its bytes.
        lock(&self.site.ranges).remove(&block.address);
        match block.kind {
            Kind::Linear => self.free(bytes, block.address)?,
            Kind::Async => self.free_async(bytes, block.address, self.stream)?,
            Kind::Mapped => {
                self.unmap(bytes, block.address, size)?;
                self.release(bytes, block.handle)?;
                self.unreserve(bytes, block.address, size)?;
            }
        }
        self.site.live_bytes.fetch_sub(block.size, Relaxed);
        Ok(())
    }

    /// Free and total bytes by `cuMemGetInfo`, without what is free in the library's pools, which it adds.
    fn free_memory(&self) -> Result<(u64, u64), Fault> {
        let (mut free, mut total) = (0, 0);
        self.info(0, &mut free, &mut total)?;
        Ok((
            (free as u64).saturating_sub(self.site.stats(None).free_inside),
            total as u64,
        ))
    }

    /// What the books say now. No thread works.
    pub fn look(&self, host: &Host, is_empty: bool) -> Result<Rest, Fault> {
        self.wait(0)?;
        let (free, total) = self.free_memory()?;
        let (mut slack, mut classes) = (Slack::default(), BTreeMap::new());
        for class in Kind::ALL.iter().flat_map(|kind| kind.classes()) {
            classes.insert(*class, (0, self.site.stats(Some(class)).requested));
        }
        for (start, (end, kind)) in lock(&self.site.ranges).iter() {
            if self.site.order.passes_through && *kind == Kind::Linear {
                slack.add(*start, end - start);
            }
            for class in kind.classes() {
                classes.entry(class).or_default().0 += end - start;
            }
        }
        Ok(Rest {
            is_empty,
            classes,
            reserved: self.site.stats(None).reserved,
            free,
            total,
            slack: slack.bytes(),
            nvml: ask_nvml(&self.site.order, host, std::process::id()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_and_pages_in_a_wrong_order_are_noticed() {
        let (kind, address, size, handle) = (Kind::Linear, 0, 2 * PAGE + 6, 0);
        let block = Block {
            kind,
            address,
            size,
            word: 0x1234_5678,
            handle,
        };
        let mut words: Vec<u32> = (0..block.written() / 4)
            .map(|place| block.expected(4 * place))
            .collect();
        assert_eq!(block.first_difference(0, &words), None);
        let last = block.written() - WORD_BYTES;
        let found = words[words.len() - 1] ^ 1;
        assert_eq!(block.first_difference(last, &[found]), Some((last, found)));
        words.rotate_left((PAGE / WORD_BYTES) as usize);
        assert_eq!(block.first_difference(0, &words), Some((0, block.expected(PAGE))));
    }
}
