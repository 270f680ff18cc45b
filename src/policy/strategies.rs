//! The one list of strategies: what a user can choose, and what the rest of the project needs to know about each.
//!
//! Names, spellings, help texts and the strategies that `replay` plays are all made from this list. A new policy is a
//! file of its own and one row here.

use std::sync::LazyLock;

use crate::arena_policy::over_arena;
use crate::auto_growth::AutoGrowth;
use crate::naive_best_fit::NaiveBestFit;
use crate::policy::Policy;
use crate::settings::Settings;

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
    /// Whether it reserves at first use, so that its peak tells nothing about what the job needs.
    reserves_up_front: bool,
    /// Whether it grows by granules if there is virtual memory management.
    maps_granules: bool,
    /// The variables that size its memory.
    sizes: &'static [SizeVariable],
    /// `None` for a strategy that forwards each call and needs no policy.
    create: Option<fn(&Settings) -> Box<dyn Policy>>,
}

/// A variable in MiB, and the setting in bytes that it becomes.
pub struct SizeVariable {
    pub name: &'static str,
    pub bytes: fn(&Settings) -> u64,
}

/// Makes the enum, its list of all variants and the look-up of a row, so that no variant can be left out of any.
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
        create: Some(|settings| over_arena(NaiveBestFit::new(settings.clone()))),
    },
    AutoGrowth: Row {
        name: "auto_growth",
        alias: Some("autogrow"),
        log_name: "Auto Growth",
        description: "grow with demand, and map free granules side by side for large requests",
        reserves_up_front: false,
        maps_granules: true,
        sizes: &[SizeVariable {
            name: "FLAGS_auto_growth_chunk_size_in_mb",
            bytes: |settings| settings.chunk_bytes,
        }],
        create: Some(|settings| over_arena(AutoGrowth::new(settings.clone()))),
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
