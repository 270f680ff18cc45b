//! The allocation policies: which bytes a request gets.
//!
//! A policy serves one context of one device. It sees memory through the trait `DeviceMemory` and nothing else, so the
//! same code serves a live GPU and an offline replay.
//!
//! This file has the list of strategies, and the settings that they take. Names, spellings, help texts and the strategies
//! that `replay` plays are all made from the list. The code of a strategy is a file of its own and a variant of `Rules`; a
//! setting of it is a field here and a variable in the crate `config`.
//!
//! From top to bottom:
//!
//! - `policy`: what the callers use: an arena, and the rules of a strategy for it
//! - `naive_best_fit`, `auto_growth`: the rules of the strategies; `slabs`: the rules of a subpool
//! - `arena`: segments cut into blocks, best fit, and when a freed block may be used again
//! - `free_index`, `blocks`: the data structures of the arena
//! - `serve`: the steps of a request or free, with calls of the driver between them; `parent_memory`: the memory of a
//!   subpool; `under_way`: memory that is on its way back to the next layer
//! - `needs`: what each strategy needs of the driver, and what it does without it
//! - `holdings`, `request`, `work`, `device_memory`: the types that all of them share

mod arena;
mod auto_growth;
mod blocks;
pub mod device_memory;
mod free_index;
mod holdings;
mod naive_best_fit;
pub mod needs;
mod parent_memory;
mod policy;
mod request;
mod serve;
pub mod slabs;
mod under_way;
mod work;

use std::sync::LazyLock;

pub use holdings::{After, Backing, Block, Statistics, UsedBy, VirtualMemory, WaitTicket};
pub use parent_memory::ParentMemory;
pub use policy::{Decision, Policy};
pub use request::Request;
pub use serve::{Due, Growing, Holder, Shared, Step, first_step, free, release_idle, serve, serve_on, work_off};
pub use under_way::{Ticket as UnderWayTicket, UnderWay};
pub use work::Work;

/// Values of the variables that size what a policy asks the next layer for: Paddle's flags, with Paddle's defaults
/// (`paddle/common/flags.cc`).
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Share of the available memory that naive_best_fit reserves if no size is given; `None` if it was not set.
    pub fraction: Option<f64>,
    /// First and later reservations of naive_best_fit; 0 if they are a share of the available memory.
    pub initial_bytes: u64,
    pub reallocate_bytes: u64,
    /// auto_growth maps memory in multiples of this, or it is the least size of a chunk.
    pub chunk_bytes: u64,
    /// Whether auto_growth gives a chunk back as soon as no block in it is live.
    pub free_idle_chunk: bool,
    /// Whether auto_growth gives idle chunks back before it obtains a new one.
    pub free_when_no_cache_hit: bool,
    /// How auto_growth may use virtual memory management. No variable sets this: `needs` says why it is restricted.
    pub mapping: Mapping,
}

/// How a policy may use virtual memory management.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    #[default]
    Free,
    /// No handle is mapped twice, so there are no stitches.
    Once,
    /// It is not used.
    None,
}

/// How much naive_best_fit reserves at a time if no flag sets a size and other processes count towards the same limit.
const STEP_BYTES: u64 = 32 << 20;

impl Settings {
    pub fn share(&self) -> f64 {
        self.fraction.unwrap_or(0.92)
    }

    /// The same for a limit that other processes may count towards: a size that no flag sets is `STEP_BYTES`.
    pub fn for_shared_limit(self) -> Settings {
        let in_steps = |bytes| {
            if bytes == 0 && self.fraction.is_none() {
                STEP_BYTES
            } else {
                bytes
            }
        };
        Settings {
            initial_bytes: in_steps(self.initial_bytes),
            reallocate_bytes: in_steps(self.reallocate_bytes),
            ..self
        }
    }
}

/// A variable in MiB, and the setting in bytes that it becomes.
pub type SizeVariable = (&'static str, fn(&Settings) -> u64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    #[default]
    Passthrough,
    NaiveBestFit,
    AutoGrowth,
}

impl Strategy {
    /// Every strategy, in the order that they are shown.
    pub const ALL: &[Strategy] = &[Strategy::Passthrough, Strategy::NaiveBestFit, Strategy::AutoGrowth];

    /// The value of `VRAMSHIM_STRATEGY`, `FLAGS_allocator_strategy` and `--strategy`; also written to the journal.
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::Passthrough => "passthrough",
            Strategy::NaiveBestFit => "naive_best_fit",
            Strategy::AutoGrowth => "auto_growth",
        }
    }

    fn alias(self) -> Option<&'static str> {
        (self == Strategy::AutoGrowth).then_some("autogrow")
    }

    /// The name in the line that announces the start, spelt as Paddle does.
    pub const fn log_name(self) -> &'static str {
        match self {
            Strategy::Passthrough => "Passthrough",
            Strategy::NaiveBestFit => "Naive Best Fit",
            Strategy::AutoGrowth => "Auto Growth",
        }
    }

    /// One line for the help of the program.
    pub const fn description(self) -> &'static str {
        match self {
            Strategy::Passthrough => "forward each request to the driver, and record it",
            Strategy::NaiveBestFit => "reserve once at first use, and cut the reservation by best fit",
            Strategy::AutoGrowth => "grow with demand, and map free memory side by side for large requests",
        }
    }

    /// Whether the strategy reserves memory at first use. Its peak then says nothing about what the job needs.
    pub const fn reserves_up_front(self) -> bool {
        matches!(self, Strategy::NaiveBestFit)
    }

    /// Whether the strategy maps memory itself if there is virtual memory management.
    pub const fn maps_granules(self) -> bool {
        matches!(self, Strategy::AutoGrowth)
    }

    /// The variables that size the requests of the strategy to the next layer.
    pub const fn sizes(self) -> &'static [SizeVariable] {
        match self {
            Strategy::Passthrough => &[],
            Strategy::NaiveBestFit => &[
                ("FLAGS_initial_gpu_memory_in_mb", |settings| settings.initial_bytes),
                ("FLAGS_reallocate_gpu_memory_in_mb", |settings| {
                    settings.reallocate_bytes
                }),
            ],
            Strategy::AutoGrowth => &[("FLAGS_auto_growth_chunk_size_in_mb", |settings| settings.chunk_bytes)],
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut all = Strategy::ALL.iter().copied();
        all.find(|strategy| strategy.name() == text || strategy.alias() == Some(text))
    }

    /// The values that `parse` accepts, for messages.
    pub fn accepted() -> &'static str {
        static ACCEPTED: LazyLock<String> = LazyLock::new(|| {
            let values = Strategy::ALL.iter().map(|strategy| match strategy.alias() {
                Some(alias) => format!("{} (also spelt {alias})", strategy.name()),
                None => strategy.name().to_owned(),
            });
            values.collect::<Vec<_>>().join(", ")
        });
        &ACCEPTED
    }
}

#[cfg(test)]
mod tests {
    use super::Strategy;

    #[test]
    fn every_spelling_that_is_told_leads_to_its_strategy_and_to_no_other() {
        let mut spellings = Vec::new();
        for &strategy in Strategy::ALL {
            for spelling in [Some(strategy.name()), strategy.alias()].into_iter().flatten() {
                assert_eq!(Strategy::parse(spelling), Some(strategy), "{spelling}");
                assert!(Strategy::accepted().contains(spelling), "{spelling}");
                assert!(!spellings.contains(&spelling), "{spelling}");
                spellings.push(spelling);
            }
        }
        assert_eq!(Strategy::parse("thread_local"), None);
    }
}
