//! The device as the threads of a worker share it: blocks of each kind of memory, the patterns in them, and what the
//! books say.
//!
//! The pattern of a block is one word all over it, and stamps in some of its pages. The stamps tell pages of a block
//! apart, so a block whose pages were mapped in a wrong order is noticed.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::Ordering::Relaxed;

use base::stats::Stats;
use base::sync::lock;

use super::cuda::{Site, Thread};
use super::kind::Kind;
use crate::analysis::host::Host;
use crate::analysis::slack::{PAGE, Slack};
use crate::driver::{Access, Location, Properties, call};
use crate::render::format;
use crate::stress::compare::Rest;
use crate::stress::outcome::{Fault, FaultKind};

/// Of the memory of the worker, this share is in live blocks at most. The rest is for what a strategy keeps.
const LIVE_PERCENT: u64 = 75;
/// Blocks up to this size are read back as a whole, longer ones in windows.
const WHOLE_BYTES: u64 = 1 << 20;
const WINDOW_BYTES: u64 = 4 << 10;
const WINDOWS: u64 = 8;
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

    /// The offsets of the stamps: the first pages, then fewer.
    fn stamps(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.written().div_ceil(PAGE))
            .filter(|page| has_stamp(*page))
            .map(|page| page * PAGE)
    }

    /// The word at an offset.
    fn expected(&self, offset: u64) -> u32 {
        let page = offset / PAGE;
        let is_stamp = offset.is_multiple_of(PAGE) && has_stamp(page);
        self.word
            ^ if is_stamp {
                (page as u32).wrapping_mul(SPREAD)
            } else {
                0
            }
    }

    /// The first offset at which the words, which begin at `from`, differ from the pattern, and what is there.
    fn first_difference(&self, from: u64, words: &[u32]) -> Option<(u64, u32)> {
        let places = (from..).step_by(WORD_BYTES as usize).zip(words.iter().copied());
        places
            .into_iter()
            .find(|(offset, word)| self.expected(*offset) != *word)
    }
}

fn has_stamp(page: u64) -> bool {
    page.is_power_of_two() || page % 64 == 3
}

/// What the threads of a worker share.
impl Site {
    pub fn location(&self) -> Location {
        Location {
            kind: 1,
            id: self.order.device,
        }
    }

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
        let granule = if kind == Kind::Mapped { self.granule.max(1) } else { 1 };
        let size = bytes.next_multiple_of(granule);
        if !self.site.claim(size) {
            return Ok(None);
        }
        let number = {
            let mut outcome = lock(&self.site.outcome);
            outcome.blocks += 1;
            outcome.blocks as u32
        };
        let mut block = Block {
            kind,
            address: 0,
            size,
            word: number.wrapping_mul(SPREAD) ^ self.site.order.seed as u32,
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
            return Err(Fault::new(FaultKind::HandedOutTwice, words).in_call(kind.call(), size));
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
        let location = self.site.location();
        let access = Access { location, rights: 3 };
        self.create(bytes, &mut block.handle, size, &Properties::on(location), 0)?;
        // Memory that another call refuses is given back, because a refusal is no fault while the device is full.
        let mut done = self.reserve(bytes, out, size, 0, 0, 0);
        if done.is_ok() {
            done = self.map(bytes, *out, size, 0, block.handle, 0);
            if done.is_ok() {
                done = self.set_access(bytes, *out, size, &access, 1);
                if done.is_err() {
                    self.unmap(0, *out, size)?;
                }
            }
            if done.is_err() {
                self.unreserve(0, *out, size)?;
            }
        }
        if done.is_err() {
            self.release(0, block.handle)?;
        }
        done
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
        let words = (block.written() / WORD_BYTES) as usize;
        if words > 0 {
            self.fill_words(0, block.address, block.word, words, self.stream)?;
        }
        for offset in block.stamps() {
            self.fill_words(0, block.address + offset, block.expected(offset), 1, self.stream)?;
        }
        Ok(())
    }

    /// Reads the block back, all of it or parts of it, and compares it with its pattern.
    pub fn check(&mut self, block: &Block) -> Result<(), Fault> {
        let written = block.written();
        let mut windows: Vec<(u64, u64)> = vec![(0, written.min(WHOLE_BYTES))];
        if written > WHOLE_BYTES {
            let last = written - WINDOW_BYTES;
            let mut place = || self.random.u64(..last) / WORD_BYTES * WORD_BYTES;
            windows = vec![(0, WINDOW_BYTES), (last, WINDOW_BYTES)];
            windows.extend((0..WINDOWS).map(|_| (place(), WINDOW_BYTES)));
            windows.extend(block.stamps().map(|offset| (offset, WORD_BYTES)));
        }
        let all: u64 = windows.iter().map(|(_, length)| length).sum();
        let mut words = vec![0u32; (all / WORD_BYTES) as usize];
        let mut to = words.as_mut_ptr().cast::<u8>();
        let mut read = Ok(());
        for (offset, length) in &windows {
            read = read.and_then(|()| self.read(0, to, block.address + offset, *length as usize, self.stream));
            to = to.wrapping_add(*length as usize);
        }
        if let Err(fault) = read.and_then(|()| self.wait_stream(0, self.stream)) {
            // Copies that began may still write.
            std::mem::forget(words);
            return Err(fault);
        }
        lock(&self.site.outcome).bytes_checked += all;
        let mut rest = words.as_slice();
        for (offset, length) in windows {
            let (window, behind) = rest.split_at((length / WORD_BYTES) as usize);
            rest = behind;
            if let Some((at, found)) = block.first_difference(offset, window) {
                let (begin, end, call) = (block.address, block.address + block.size, block.kind.call());
                let words = format!(
                    "the block {begin:#x} to {end:#x} of {call} lost what was written: at byte {at} is {found:#010x}, not \
                     {:#010x}",
                    block.expected(at)
                );
                return Err(Fault::new(FaultKind::BytesChanged, words).in_call(call, block.size));
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
            nvml: self.site.order.ask_nvml(host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_and_pages_in_a_wrong_order_are_noticed() {
        for size in [4, 7, 4096, PAGE, PAGE + 5, 4 * PAGE, 5 * PAGE + 6] {
            let (kind, address, word, handle) = (Kind::Linear, 0, 0x1234_5678, 0);
            let block = Block {
                kind,
                address,
                size,
                word,
                handle,
            };
            let mut words = vec![block.word; (block.written() / WORD_BYTES) as usize];
            block
                .stamps()
                .for_each(|at| words[(at / WORD_BYTES) as usize] = block.expected(at));
            assert_eq!(block.first_difference(0, &words), None, "{size}");
            let last = block.written() - WORD_BYTES;
            let found = words[words.len() - 1] ^ 1;
            assert_eq!(block.first_difference(last, &[found]), Some((last, found)), "{size}");
            if size == 4 * PAGE {
                words.rotate_left((PAGE / WORD_BYTES) as usize);
                assert_eq!(block.first_difference(0, &words), Some((0, block.expected(PAGE))));
            }
        }
    }
}
