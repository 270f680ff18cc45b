//! The device as the threads of a worker share it: what they hold together, and what the books say.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::stats::Stats;
use base::sync::lock;

use super::cuda::{Cuda, Failed, Hand};
use super::kind::Kind;
use crate::analysis::slack::Slack;
use crate::driver::{Library, Location, call};
use crate::stress::fault::{Fault, Kind as FaultKind};
use crate::stress::message::{Counts, Order, Phase, Rest};

/// Of the memory of the worker, this share is in live blocks at most. The rest is for what a strategy keeps.
const LIVE_PERCENT: u64 = 75;

/// A live block: its end, and the word of its pattern.
#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    word: u32,
    kind: Kind,
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
    /// The most bytes that may be held now.
    memory: AtomicU64,
    live_bytes: AtomicU64,
    ranges: Mutex<BTreeMap<u64, Range>>,
    /// Requested bytes by class, as the ledger counts them.
    own: Mutex<BTreeMap<&'static str, u64>>,
    words: AtomicU64,
    pub blocks: AtomicU64,
    pub bytes_checked: AtomicU64,
    refused: AtomicU64,
    /// A thread met a fault: all threads stop.
    pub is_over: AtomicBool,
}

impl Site {
    pub fn new(cuda: Cuda, ours: Library, order: Order) -> Site {
        Site {
            cuda,
            ours,
            kinds: Vec::new(),
            granule: 0,
            context: 0,
            memory: order.memory.into(),
            order,
            live_bytes: 0.into(),
            ranges: Mutex::default(),
            own: Mutex::default(),
            words: 0.into(),
            blocks: 0.into(),
            bytes_checked: 0.into(),
            refused: 0.into(),
            is_over: false.into(),
        }
    }

    pub fn device(&self) -> c_int {
        self.order.device
    }

    pub fn location(&self) -> Location {
        Location {
            kind: 1,
            id: self.device(),
        }
    }

    /// A word for the pattern of a new block. No two live blocks have the same.
    pub fn new_word(&self) -> u32 {
        let number = self.words.fetch_add(1, Relaxed) as u32 + 1;
        number.wrapping_mul(0x9e37_79b1) ^ self.order.seed as u32
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        call!(self.ours, vramshim_stats(self.device() => c_int, &mut stats => &mut Stats));
        stats
    }

    fn stats_of(&self, class: &str) -> Stats {
        let (mut stats, name) = (Stats::default(), CString::new(class).unwrap_or_default());
        call!(self.ours, vramshim_class_stats(
            self.device() => c_int, name.as_ptr() => *const std::ffi::c_char, &mut stats => &mut Stats
        ));
        stats
    }

    /// Gives back what the library keeps free.
    pub fn trim(&self) {
        call!(self.ours, vramshim_trim(self.device() => c_int));
    }

    /// The most bytes that a worker takes in one piece.
    pub fn largest(&self) -> u64 {
        self.memory.load(Relaxed) / 8
    }

    pub fn most_live(&self) -> u64 {
        self.memory.load(Relaxed) / 100 * LIVE_PERCENT
    }

    /// Whether a block of this size may be taken. If it may, it counts as live from now on.
    pub fn claim(&self, bytes: u64) -> bool {
        let before = self.live_bytes.fetch_add(bytes, Relaxed);
        let fits = before + bytes <= self.most_live() && {
            let stats = self.stats();
            // What a strategy keeps free serves the request, in one piece or in several that it maps side by side.
            stats.free_inside >= bytes.saturating_mul(2) || stats.reserved + bytes <= self.memory.load(Relaxed)
        };
        if !fits {
            self.unclaim(bytes);
        }
        fits
    }

    pub fn unclaim(&self, bytes: u64) {
        self.live_bytes.fetch_sub(bytes, Relaxed);
    }

    pub fn add_live(&self, bytes: u64) {
        self.live_bytes.fetch_add(bytes, Relaxed);
    }

    /// A request was refused. That is a fault if the device has plenty of free memory.
    pub fn refused(&self, hand: &mut Hand, failed: Failed) -> Result<(), Fault> {
        /// `CUDA_ERROR_OUT_OF_MEMORY`
        const OUT_OF_MEMORY: i32 = 2;
        const PLENTY_BYTES: u64 = 64 << 20;
        if failed.code != OUT_OF_MEMORY {
            return Err(failed.into());
        }
        let (free, _) = self.free_memory(hand)?;
        if free >= failed.bytes.saturating_mul(2).saturating_add(PLENTY_BYTES) {
            let more = format!(", while the device has {} free", crate::render::format::size(free));
            return Err(Fault::of_call(
                FaultKind::NoMemory,
                failed.call,
                failed.code,
                failed.bytes,
                &more,
            ));
        }
        self.refused.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Notes a block that was handed out, and looks whether another live block has bytes of it.
    pub fn enter(&self, address: u64, size: u64, word: u32, kind: Kind, requested: u64) -> Result<(), Fault> {
        let end = address.saturating_add(size);
        let mut ranges = lock(&self.ranges);
        let below = ranges.range(..end).next_back();
        if let Some((start, other)) = below.filter(|(_, other)| other.end > address) {
            let words = format!(
                "{} handed out {address:#x} to {end:#x}, but {start:#x} to {:#x} of {} is live",
                kind.call(),
                other.end,
                other.kind.call(),
            );
            return Err(Fault::new(FaultKind::HandedOutTwice, words).in_call(kind.call(), requested));
        }
        ranges.insert(address, Range { end, word, kind });
        drop(ranges);
        self.blocks.fetch_add(1, Relaxed);
        let mut own = lock(&self.own);
        kind.classes()
            .iter()
            .for_each(|class| *own.entry(class).or_default() += requested);
        Ok(())
    }

    /// Forgets a block before it is freed: from then on another thread may get its bytes.
    pub fn leave(&self, address: u64, kind: Kind, requested: u64) {
        lock(&self.ranges).remove(&address);
        let mut own = lock(&self.own);
        for class in kind.classes() {
            let bytes = own.entry(class).or_default();
            *bytes = bytes.saturating_sub(requested);
        }
    }

    /// Whose pattern a word is, for people.
    pub fn owner_of(&self, word: u32) -> Option<String> {
        let ranges = lock(&self.ranges);
        let (start, other) = ranges.iter().find(|(_, range)| range.word == word)?;
        Some(format!(
            "the pattern of the block {start:#x} to {:#x} of {}",
            other.end,
            other.kind.call()
        ))
    }

    /// Free and total bytes by `cuMemGetInfo`, without what is free in the library's pools, which it adds.
    fn free_memory(&self, hand: &mut Hand) -> Result<(u64, u64), Fault> {
        let (mut free, mut total) = (0, 0);
        self.cuda.info(hand, 0, &mut free, &mut total)?;
        let free = (free as u64).saturating_sub(self.stats().free_inside);
        Ok((free, total as u64))
    }

    /// What the books say now. No thread works.
    pub fn look(&self, hand: &mut Hand, round: u64, phase: Phase, calls: u64) -> Result<Rest, Fault> {
        self.cuda.wait(hand, 0)?;
        let (free, total) = self.free_memory(hand)?;
        let stats = self.stats();
        if self.order.leaves_three_quarters {
            let quarter = (stats.reserved + free) / 4;
            self.memory.store(quarter.min(self.order.memory), Relaxed);
        }
        let own = lock(&self.own).clone();
        let classes = Kind::ALL.iter().flat_map(|kind| kind.classes());
        let named = |bytes: &dyn Fn(&str) -> u64| -> BTreeMap<String, u64> {
            let classes = classes.clone();
            classes.map(|class| (class.to_string(), bytes(class))).collect()
        };
        let mut slack = Slack::default();
        let pages = |range: &&Range| matches!(range.kind, Kind::Linear | Kind::Pitched | Kind::Managed);
        if self.order.passes_through {
            let ranges = lock(&self.ranges);
            let ranges = ranges.iter().map(|(start, range)| (*start, range));
            for (start, range) in ranges.filter(|(_, range)| pages(range)) {
                slack.add(start, range.end - start);
            }
        }
        Ok(Rest {
            round,
            phase,
            managed: own.get("managed").copied().unwrap_or_default(),
            own: named(&|class| own.get(class).copied().unwrap_or_default()),
            ledger: named(&|class| self.stats_of(class).requested),
            reserved: stats.reserved,
            free,
            total,
            slack: slack.bytes(),
            counts: Counts {
                calls,
                blocks: self.blocks.load(Relaxed),
                bytes_checked: self.bytes_checked.load(Relaxed),
                refused: self.refused.load(Relaxed),
            },
        })
    }
}
