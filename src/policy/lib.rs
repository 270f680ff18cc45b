//! The allocation policies: which bytes a request gets.
//!
//! A policy serves one context of one device. It sees memory through the trait `DeviceMemory` and nothing else, so the
//! same code serves a live GPU and an offline replay.
//!
//! This file has the one list of strategies, and the settings that they take. Names, spellings, help texts and the
//! strategies that `replay` plays are all made from the list. A new policy is a file of its own and one row here; a
//! setting of it is a field here and a variable in the crate `config`.
//!
//! From top to bottom:
//!
//! - `naive_best_fit`, `auto_growth`: the policies in the list; `slabs`: the policy of a subpool
//! - `arena_policy`: turns rules over an arena into a `Policy`
//! - `arena`: segments cut into blocks, best fit, and when a freed block may be used again
//! - `free_index`, `blocks`, `block_id`, `pages`: the data structures of the arena
//! - `serve`: the steps of a request or free, with calls of the driver between them; `under_way`: memory that is on its
//!   way back to the next layer
//! - `needs`: what each strategy needs of the driver, and what it does without it
//! - `policy`, `request`, `work`, `device_memory`: the types and traits that all of them share

mod arena;
mod arena_policy;
mod auto_growth;
mod block_id;
mod blocks;
pub mod device_memory;
mod free_index;
mod naive_best_fit;
pub mod needs;
mod pages;
mod policy;
mod request;
mod serve;
pub mod slabs;
mod under_way;
mod work;

use std::sync::LazyLock;

use arena_policy::over_arena;
use auto_growth::{AutoGrowth, ChunkRules};
use naive_best_fit::NaiveBestFit;

pub use policy::{After, Backing, Block, Decision, Policy, Statistics, UsedBy, VirtualMemory, WaitTicket};
pub use request::Request;
pub use serve::{Due, Growing, Holder, Shared, Step, first_step, free, release_idle, serve, serve_on, work_off};
pub use slabs::subpool;
pub use under_way::{Ticket as UnderWayTicket, UnderWay};
pub use work::Work;

/// Values of the variables that size what a policy asks the next layer for: Paddle's flags, with Paddle's defaults
/// (`paddle/common/flags.cc`).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Share of the available memory that naive_best_fit reserves if no size is given.
    pub fraction: f64,
    /// First reservation of naive_best_fit; 0 if it is a share of the available memory.
    pub initial_bytes: u64,
    /// Later reservations of naive_best_fit; 0 if they are a share of the available memory.
    pub reallocate_bytes: u64,
    /// auto_growth maps memory in multiples of this, or it is the least size of a chunk.
    pub chunk_bytes: u64,
    /// Whether auto_growth gives a chunk back as soon as no block in it is live.
    pub free_idle_chunk: bool,
    /// Whether auto_growth gives idle chunks back before it obtains a new one.
    pub free_when_no_cache_hit: bool,
    /// Whether auto_growth spares memory rather than driver calls.
    pub tight: bool,
    /// How auto_growth may use virtual memory management. No variable sets this: `needs` says why it is restricted.
    pub mapping: Mapping,
}

/// How a policy may use virtual memory management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    Free,
    /// No handle is mapped twice, so there are no stitches.
    Once,
    /// It is not used.
    None,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            fraction: 0.92,
            initial_bytes: 0,
            reallocate_bytes: 0,
            chunk_bytes: 0,
            free_idle_chunk: false,
            free_when_no_cache_hit: false,
            tight: false,
            mapping: Mapping::Free,
        }
    }
}

/// One row of the list.
struct Row {
    /// The value of `VRAMSHIM_STRATEGY`, `FLAGS_allocator_strategy` and `--strategy`; also written to the journal.
    name: &'static str,
    /// Another spelling that is accepted.
    alias: Option<&'static str>,
    /// The name in the line that announces the start, spelt as Paddle does.
    log_name: &'static str,
    /// One line for the help of the program.
    description: &'static str,
    /// Whether the strategy reserves memory at first use. Its peak then says nothing about what the job needs.
    reserves_up_front: bool,
    /// Whether the strategy maps memory itself if there is virtual memory management.
    maps_granules: bool,
    /// The variables that size the requests of the strategy to the next layer.
    sizes: &'static [SizeVariable],
    /// `None` for a strategy that forwards each call and needs no policy.
    create: Option<Create>,
}

type Create = fn(&Settings) -> Box<dyn Policy>;

/// A variable in MiB, and the setting in bytes that it becomes.
pub struct SizeVariable {
    pub name: &'static str,
    pub bytes: fn(&Settings) -> u64,
}

/// Makes the enum `Strategy`, the list of all strategies, and the look-up of a row. So no strategy can be left out of
/// one of them.
macro_rules! strategies {
    ($($variant:ident: $row:expr,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Strategy {
            $($variant,)*
        }

        impl Strategy {
            /// Every strategy, in the order that they are shown.
            pub const ALL: &[Strategy] = &[$(Strategy::$variant,)*];

            #[inline]
            const fn row(self) -> Row {
                match self {
                    $(Strategy::$variant => $row,)*
                }
            }
        }
    };
}

strategies! {
    Passthrough: Row {
        name: "passthrough",
        alias: None,
        log_name: "Passthrough",
        description: "forward each request to the driver, and record it",
        reserves_up_front: false,
        maps_granules: false,
        sizes: &[],
        create: None,
    },
    NaiveBestFit: Row {
        name: "naive_best_fit",
        alias: None,
        log_name: "Naive Best Fit",
        description: "reserve once at first use, and cut the reservation by best fit",
        reserves_up_front: true,
        maps_granules: false,
        sizes: &[
            SizeVariable {
                name: "FLAGS_initial_gpu_memory_in_mb",
                bytes: |settings| settings.initial_bytes,
            },
            SizeVariable {
                name: "FLAGS_reallocate_gpu_memory_in_mb",
                bytes: |settings| settings.reallocate_bytes,
            },
        ],
        create: Some(|settings| {
            over_arena(NaiveBestFit::new(
                settings.fraction,
                settings.initial_bytes,
                settings.reallocate_bytes,
            ))
        }),
    },
    AutoGrowth: Row {
        name: "auto_growth",
        alias: Some("autogrow"),
        log_name: "Auto Growth",
        description: "grow with demand, and map free memory side by side for large requests",
        reserves_up_front: false,
        maps_granules: true,
        sizes: &[SizeVariable {
            name: "FLAGS_auto_growth_chunk_size_in_mb",
            bytes: |settings| settings.chunk_bytes,
        }],
        create: Some(|settings| {
            over_arena(AutoGrowth::new(
                settings.chunk_bytes,
                settings.tight,
                settings.mapping,
                ChunkRules {
                    least_bytes: settings.chunk_bytes,
                    release_when_idle: settings.free_idle_chunk,
                    release_before_growth: settings.free_when_no_cache_hit,
                },
            ))
        }),
    },
}

impl Strategy {
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// As Paddle's start line spells it.
    pub const fn log_name(self) -> &'static str {
        self.row().log_name
    }

    pub const fn description(self) -> &'static str {
        self.row().description
    }

    pub const fn reserves_up_front(self) -> bool {
        self.row().reserves_up_front
    }

    pub const fn maps_granules(self) -> bool {
        self.row().maps_granules
    }

    pub const fn sizes(self) -> &'static [SizeVariable] {
        self.row().sizes
    }

    /// A new policy for one context; `None` if the strategy needs none.
    pub fn create(self, settings: &Settings) -> Option<Box<dyn Policy>> {
        self.row().create.map(|create| create(settings))
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut all = Strategy::ALL.iter().copied();
        all.find(|strategy| strategy.name() == text || strategy.row().alias == Some(text))
    }

    /// The values that `parse` accepts, for messages.
    pub fn accepted() -> &'static str {
        static ACCEPTED: LazyLock<String> = LazyLock::new(|| {
            let values = Strategy::ALL.iter().map(|strategy| match strategy.row().alias {
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
            for spelling in [Some(strategy.name()), strategy.row().alias].into_iter().flatten() {
                assert_eq!(Strategy::parse(spelling), Some(strategy), "{spelling}");
                assert!(Strategy::accepted().contains(spelling), "{spelling}");
                assert!(!spellings.contains(&spelling), "{spelling}");
                spellings.push(spelling);
            }
        }
        assert_eq!(Strategy::parse("thread_local"), None);
    }
}
