//! The device as the threads of a worker share it: blocks of each kind of memory, the patterns in them, and what the
//! books say.
//!
//! The pattern of a block is one word all over it, and stamps in some of its pages. The stamps tell pages of a block
//! apart, so a block whose pages were mapped in a wrong order is noticed.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::stats::Stats;
use base::sync::lock;

use super::cuda::{Cuda, Failed, Hand};
use super::random::Random;
use crate::analysis::host::Host;
use crate::analysis::slack::{PAGE, Slack};
use crate::driver::{Access, Library, Location, Properties, call};
use crate::render::format;
use crate::stress::compare::Rest;
use crate::stress::outcome::{Fault, FaultKind, Order};

/// Of the memory of the worker, this share is in live blocks at most. The rest is for what a strategy keeps.
const LIVE_PERCENT: u64 = 75;
/// Blocks up to this size are read back as a whole, longer ones in windows.
const WHOLE_BYTES: u64 = 1 << 20;
const WINDOW_BYTES: u64 = 4 << 10;
const WINDOWS: u64 = 8;
const WORD_BYTES: u64 = 4;
/// Makes numbers that follow one another differ in all bits (2 to the power of 32, divided by the golden ratio).
const SPREAD: u32 = 0x9e37_79b1;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Linear,
    /// Of the driver's default pool, in the order of a stream.
    Async,
    /// A handle, mapped at reserved addresses.
    Mapped,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Linear, Kind::Async, Kind::Mapped];

    /// The call that hands the memory out, the classes of shim.h in which the memory counts, and the attribute that says
    /// whether a device has this kind (`CU_DEVICE_ATTRIBUTE_*`, cuda.h); linear memory is always there.
    const fn facts(self) -> (&'static str, &'static [&'static str], Option<i32>) {
        match self {
            Kind::Linear => ("cuMemAlloc", &["linear"], None),
            Kind::Async => ("cuMemAllocAsync", &["async"], Some(115)),
            Kind::Mapped => ("cuMemCreate", &["vmm", "address_range"], Some(102)),
        }
    }

    pub const fn call(self) -> &'static str {
        self.facts().0
    }

    const fn classes(self) -> &'static [&'static str] {
        self.facts().1
    }

    pub const fn attribute(self) -> Option<i32> {
        self.facts().2
    }
}

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

pub struct Site {
    pub cuda: Cuda,
    pub ours: Library,
    pub order: Order,
    pub kinds: Vec<Kind>,
    /// The granularity of mapped memory.
    pub granule: u64,
    /// The device's primary context.
    pub context: usize,
    pub live_bytes: AtomicU64,
    /// Begin and end of each live block.
    pub ranges: Mutex<BTreeMap<u64, (u64, Kind)>>,
    pub blocks: AtomicU64,
    pub bytes_checked: AtomicU64,
    pub refused: AtomicU64,
    /// A thread met a fault: all threads stop.
    pub is_over: AtomicBool,
}

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

    /// Takes a block. `None` if the worker may not hold it now, or the device has no room.
    pub fn take(&self, hand: &mut Hand, kind: Kind, bytes: u64, stream: usize) -> Result<Option<Block>, Fault> {
        let granule = if kind == Kind::Mapped { self.granule.max(1) } else { 1 };
        let size = bytes.next_multiple_of(granule);
        if !self.claim(size) {
            return Ok(None);
        }
        let number = self.blocks.fetch_add(1, Relaxed) as u32 + 1;
        let mut block = Block {
            kind,
            address: 0,
            size,
            word: number.wrapping_mul(SPREAD) ^ self.order.seed as u32,
            handle: 0,
        };
        if let Err(failed) = self.obtain(hand, &mut block, stream) {
            self.live_bytes.fetch_sub(size, Relaxed);
            return self.refused(hand, failed).map(|()| None);
        }
        let end = block.address.saturating_add(size);
        let mut ranges = lock(&self.ranges);
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

    fn obtain(&self, hand: &mut Hand, block: &mut Block, stream: usize) -> Result<(), Failed> {
        let (cuda, bytes, size, out) = (&self.cuda, block.size, block.size as usize, &mut block.address);
        match block.kind {
            Kind::Linear => return cuda.alloc(hand, bytes, out, size),
            Kind::Async => return cuda.alloc_async(hand, bytes, out, size, stream),
            Kind::Mapped => {}
        }
        let location = self.location();
        let access = Access { location, rights: 3 };
        cuda.create(hand, bytes, &mut block.handle, size, &Properties::on(location), 0)?;
        // Memory that another call refuses is given back, because a refusal is no fault while the device is full.
        let mut done = cuda.reserve(hand, bytes, out, size, 0, 0, 0);
        if done.is_ok() {
            done = cuda.map(hand, bytes, *out, size, 0, block.handle, 0);
            if done.is_ok() {
                done = cuda.set_access(hand, bytes, *out, size, &access, 1);
                if done.is_err() {
                    cuda.unmap(hand, 0, *out, size)?;
                }
            }
            if done.is_err() {
                cuda.unreserve(hand, 0, *out, size)?;
            }
        }
        if done.is_err() {
            cuda.release(hand, 0, block.handle)?;
        }
        done
    }

    /// A request was refused. That is a fault if the device has plenty of free memory.
    fn refused(&self, hand: &mut Hand, failed: Failed) -> Result<(), Fault> {
        /// `CUDA_ERROR_OUT_OF_MEMORY`
        const OUT_OF_MEMORY: i32 = 2;
        const PLENTY_BYTES: u64 = 64 << 20;
        let Failed { call, code, bytes } = failed;
        if code != OUT_OF_MEMORY {
            return Err(failed.into());
        }
        let (free, _) = self.free_memory(hand)?;
        if free >= bytes.saturating_mul(2).saturating_add(PLENTY_BYTES) {
            let mut fault = Fault::answered(call, code, bytes);
            fault.kind = FaultKind::NoMemory;
            fault.words += &format!(", while the device has {} free", format::size(free));
            return Err(fault);
        }
        self.refused.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Writes the pattern of the block. Returns before it is done.
    pub fn fill(&self, hand: &mut Hand, block: &Block, stream: usize) -> Result<(), Fault> {
        let (cuda, words) = (&self.cuda, (block.written() / WORD_BYTES) as usize);
        if words > 0 {
            cuda.fill_words(hand, 0, block.address, block.word, words, stream)?;
        }
        for offset in block.stamps() {
            cuda.fill_words(hand, 0, block.address + offset, block.expected(offset), 1, stream)?;
        }
        Ok(())
    }

    /// Reads the block back, all of it or parts of it, and compares it with its pattern.
    pub fn check(&self, hand: &mut Hand, block: &Block, random: &mut Random, stream: usize) -> Result<(), Fault> {
        let written = block.written();
        let mut windows: Vec<(u64, u64)> = vec![(0, written.min(WHOLE_BYTES))];
        if written > WHOLE_BYTES {
            let last = written - WINDOW_BYTES;
            let mut place = || random.below(last) / WORD_BYTES * WORD_BYTES;
            windows = vec![(0, WINDOW_BYTES), (last, WINDOW_BYTES)];
            windows.extend((0..WINDOWS).map(|_| (place(), WINDOW_BYTES)));
            windows.extend(block.stamps().map(|offset| (offset, WORD_BYTES)));
        }
        let all: u64 = windows.iter().map(|(_, length)| length).sum();
        let mut words = vec![0u32; (all / WORD_BYTES) as usize];
        let mut to = words.as_mut_ptr().cast::<u8>();
        let mut read = Ok(());
        for (offset, length) in &windows {
            read = read.and_then(|()| {
                self.cuda
                    .read(hand, 0, to, block.address + offset, *length as usize, stream)
            });
            to = to.wrapping_add(*length as usize);
        }
        if let Err(failed) = read.and_then(|()| self.cuda.wait_stream(hand, 0, stream)) {
            // Copies that began may still write.
            std::mem::forget(words);
            return Err(failed.into());
        }
        self.bytes_checked.fetch_add(all, Relaxed);
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

    /// Frees a block. Its work is on `stream`; a free of linear memory waits for this work, and all other calls here are
    /// made after it.
    pub fn give_back(&self, hand: &mut Hand, block: Block, stream: usize) -> Result<(), Fault> {
        let (cuda, bytes, size) = (&self.cuda, block.size, block.size as usize);
        if block.kind == Kind::Mapped {
            cuda.wait_stream(hand, 0, stream)?;
        }
        // Before the free: from then on another thread may get its bytes.
        lock(&self.ranges).remove(&block.address);
        match block.kind {
            Kind::Linear => cuda.free(hand, bytes, block.address)?,
            Kind::Async => cuda.free_async(hand, bytes, block.address, stream)?,
            Kind::Mapped => {
                cuda.unmap(hand, bytes, block.address, size)?;
                cuda.release(hand, bytes, block.handle)?;
                cuda.unreserve(hand, bytes, block.address, size)?;
            }
        }
        self.live_bytes.fetch_sub(block.size, Relaxed);
        Ok(())
    }

    /// Free and total bytes by `cuMemGetInfo`, without what is free in the library's pools, which it adds.
    fn free_memory(&self, hand: &mut Hand) -> Result<(u64, u64), Fault> {
        let (mut free, mut total) = (0, 0);
        self.cuda.info(hand, 0, &mut free, &mut total)?;
        Ok(((free as u64).saturating_sub(self.stats(None).free_inside), total as u64))
    }

    /// What the books say now. No thread works.
    pub fn look(&self, hand: &mut Hand, host: &Host, is_empty: bool) -> Result<Rest, Fault> {
        self.cuda.wait(hand, 0)?;
        let (free, total) = self.free_memory(hand)?;
        let (mut slack, mut classes) = (Slack::default(), BTreeMap::new());
        for class in Kind::ALL.iter().flat_map(|kind| kind.classes()) {
            classes.insert(*class, (0, self.stats(Some(class)).requested));
        }
        for (start, (end, kind)) in lock(&self.ranges).iter() {
            if self.order.passes_through && *kind == Kind::Linear {
                slack.add(*start, end - start);
            }
            for class in kind.classes() {
                classes.entry(class).or_default().0 += end - start;
            }
        }
        Ok(Rest {
            is_empty,
            classes,
            reserved: self.stats(None).reserved,
            free,
            total,
            slack: slack.bytes(),
            nvml: self.order.ask_nvml(host),
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
