//! The blocks of a worker: taken, filled with patterns, checked and freed by its threads; and what the books say of them.
//!
//! Each page of a block has one word all over it, which no other page has. So a block whose pages were mapped in a wrong
//! order is noticed.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};

use base::stats::Stats;
use base::sync::lock;

use super::{Site, Thread};
use crate::analysis::host::Host;
use crate::analysis::slack::{PAGE, Slack};
use crate::driver::{Access, Library, Location, Properties, call};
use crate::render::format;
use crate::stress::compare::{Rest, ask_nvml};
use crate::stress::outcome::{Fault, FaultKind, Kind};

/// Of the memory of the worker, this share is in live blocks at most. The rest is for what a strategy keeps.
const LIVE_PERCENT: u64 = 75;
/// Blocks up to this size are read back as a whole, longer ones in windows.
pub const WHOLE_BYTES: usize = 1 << 20;
const WINDOW_BYTES: usize = 4 << 10;
const WINDOWS: u64 = 8;
const WORD_BYTES: u64 = 4;
/// Makes numbers that follow one another differ in all bits (2 to the power of 32, divided by the golden ratio).
const SPREAD: u32 = 0x9e37_79b1;
/// `CUDA_ERROR_OUT_OF_MEMORY`
const OUT_OF_MEMORY: i32 = 2;
/// A device with so many more free bytes than twice the request has room for it.
const PLENTY_BYTES: u64 = 64 << 20;

pub struct Block {
    kind: Kind,
    address: u64,
    size: u64,
    word: u32,
    handle: u64,
}

impl Block {
    /// Bytes of whole words. What is behind them is not written.
    fn written(&self) -> u64 {
        self.size / WORD_BYTES * WORD_BYTES
    }

    /// The word at an offset.
    fn expected(&self, offset: u64) -> u32 {
        self.word ^ ((offset / PAGE) as u32).wrapping_mul(SPREAD)
    }
}

impl Site {
    /// The library's figures of the device, in all or of one class.
    fn stats(&self, class: Option<&CStr>) -> Stats {
        let (mut stats, device, ours) = (Stats::default(), self.order.device, Library::of_this_process());
        match class {
            None => call!(ours, vramshim_stats(device => c_int, &mut stats => &mut Stats)),
            Some(class) => call!(ours, vramshim_class_stats(
                device => c_int, class.as_ptr() => *const c_char, &mut stats => &mut Stats
            )),
        };
        stats
    }

    /// Whether a block of this size may be taken. If it may, it counts as live from now on.
    fn claim(&self, bytes: u64) -> bool {
        let (stats, memory) = (self.stats(None), self.order.memory);
        // What a strategy keeps free serves the request, in one piece or in several that it maps side by side.
        let has_room = stats.free_inside >= bytes.saturating_mul(2) || stats.reserved + bytes <= memory;
        let live_bytes = &mut lock(&self.books).live_bytes;
        let fits = has_room && *live_bytes + bytes <= memory / 100 * LIVE_PERCENT;
        *live_bytes += if fits { bytes } else { 0 };
        fits
    }
}

impl Thread {
    /// Takes a block. `None` if the worker may not hold it now, or the device has no room.
    pub fn take(&mut self, kind: Kind, bytes: u64) -> Result<Option<Block>, Fault> {
        let granule = if kind == Kind::Mapped {
            self.site.order.granule
        } else {
            1
        };
        let (size, word) = (bytes.next_multiple_of(granule), self.random.u32(..));
        if !self.site.claim(size) {
            return Ok(None);
        }
        let mut block = Block {
            kind,
            address: 0,
            size,
            word,
            handle: 0,
        };
        if let Err(fault) = self.obtain(&mut block) {
            lock(&self.site.books).live_bytes -= size;
            return self.refused(fault, size).map(|()| None);
        }
        let mut books = lock(&self.site.books);
        let (begin, end, call) = (block.address, block.address.saturating_add(size), kind.call());
        let below = books.ranges.range(..end).next_back();
        if let Some((start, (other, of))) = below.filter(|(_, (other, _))| *other > begin) {
            let of = of.call();
            let words =
                format!("{call} handed out {begin:#x} to {end:#x}, but {start:#x} to {other:#x} of {of} is live");
            return Err(Fault::new(FaultKind::HandedOutTwice, words).in_call(call));
        }
        books.ranges.insert(begin, (end, kind));
        books.outcome.blocks += 1;
        Ok(Some(block))
    }

    fn obtain(&self, block: &mut Block) -> Result<(), Fault> {
        let (bytes, size, out) = (block.size, block.size as usize, &mut block.address);
        match block.kind {
            Kind::Linear => return self.alloc(bytes, out, size),
            Kind::Async => return self.alloc_async(bytes, out, size, self.stream),
            Kind::Mapped => {}
        }
        let (kind, id, rights) = (1, self.site.order.device, 3);
        let location = Location { kind, id };
        let access = Access { location, rights };
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
        if fault.code != Some(OUT_OF_MEMORY) {
            return Err(fault);
        }
        let free = self.free_memory()?;
        if free >= bytes.saturating_mul(2).saturating_add(PLENTY_BYTES) {
            fault.kind = FaultKind::NoMemory;
            fault.words += &format!(", while the device has {} free", format::size(free));
            return Err(fault);
        }
        lock(&self.site.books).outcome.refused += 1;
        Ok(())
    }

    /// Writes the pattern of the block. Returns before it is done.
    pub fn fill(&self, block: &Block) -> Result<(), Fault> {
        for offset in (0..block.written()).step_by(PAGE as usize) {
            let (address, word) = (block.address + offset, block.expected(offset));
            let words = (block.written() - offset).min(PAGE) / WORD_BYTES;
            self.fill_words(0, address, word, words as usize, self.stream)?;
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
        for from in offsets {
            let to = self.buffer.as_mut_ptr().cast();
            self.read(0, to, block.address + from, length, self.stream)?;
            self.wait_stream(0, self.stream)?;
            lock(&self.site.books).outcome.bytes_checked += length as u64;
            let mut words = (from..from + length as u64)
                .step_by(WORD_BYTES as usize)
                .zip(&*self.buffer);
            if let Some((at, found)) = words.find(|(offset, word)| block.expected(*offset) != **word) {
                let (begin, size, call, expected) = (block.address, block.size, block.kind.call(), block.expected(at));
                let words = format!(
                    "the block of {call} at {begin:#x} of {size} bytes lost what was written: at byte {at} is \
                     {found:#010x}, not {expected:#010x}"
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
        lock(&self.site.books).ranges.remove(&block.address);
        match block.kind {
            Kind::Linear => self.free(bytes, block.address)?,
            Kind::Async => self.free_async(bytes, block.address, self.stream)?,
            Kind::Mapped => {
                self.unmap(bytes, block.address, size)?;
                self.release(bytes, block.handle)?;
                self.unreserve(bytes, block.address, size)?;
            }
        }
        lock(&self.site.books).live_bytes -= block.size;
        Ok(())
    }

    /// Free bytes by `cuMemGetInfo`, without what is free in the library's pools, which it adds.
    fn free_memory(&self) -> Result<u64, Fault> {
        let (mut free, mut total) = (0, 0);
        self.info(0, &mut free, &mut total)?;
        Ok((free as u64).saturating_sub(self.site.stats(None).free_inside))
    }

    /// What the books say now. No thread works.
    pub fn look(&self, is_empty: bool) -> Result<Rest, Fault> {
        self.wait(0)?;
        let free = self.free_memory()?;
        let (mut slack, mut classes, site, pid) = (Slack::default(), BTreeMap::new(), self.site, std::process::id());
        for class in Kind::ALL.iter().flat_map(|kind| kind.classes()) {
            classes.insert(*class, (0, site.stats(Some(class)).requested));
        }
        for (start, (end, kind)) in &lock(&site.books).ranges {
            if site.order.passes_through && *kind == Kind::Linear {
                slack.change(*start, end - start, true);
            }
            for class in kind.classes() {
                classes.entry(class).or_default().0 += end - start;
            }
        }
        Ok(Rest {
            is_empty,
            classes,
            reserved: site.stats(None).reserved,
            free,
            slack: slack.bytes(),
            nvml: ask_nvml(&site.order, &Host::of(pid), pid),
        })
    }
}
