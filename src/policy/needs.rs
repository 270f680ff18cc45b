//! What each strategy needs of the driver, and what it does without it: one table.
//!
//! The assumptions are the probes of `tests/assumptions`, by name. `vramshim doctor --assumptions` asks them and keeps
//! the answers (`base::verdict`); the library reads the answers when a pool begins. An assumption that was not asked
//! counts as one that holds.

use base::verdict::{Outcome, Verdict};

use Instead::{Chunks, MapOnce, Passthrough};

use crate::{Mapping, Settings, Strategy};

/// What a strategy does instead, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instead {
    /// Physical memory is mapped once: there are no stitches.
    MapOnce,
    /// Memory grows in chunks.
    Chunks,
    /// Every request goes to the next layer.
    Passthrough,
}

impl Instead {
    /// What a strategy does, in words that follow its name.
    pub const fn words(self) -> &'static str {
        match self {
            MapOnce => "maps memory once, without stitches",
            Chunks => "grows in chunks, which can be left fragmented",
            Passthrough => "passes every request through",
        }
    }

    /// The strategy and settings that are left.
    pub fn apply(self, strategy: Strategy, settings: &Settings) -> (Strategy, Settings) {
        let with = |mapping| Settings {
            mapping,
            ..settings.clone()
        };
        match self {
            MapOnce => (strategy, with(Mapping::Once)),
            Chunks => (strategy, with(Mapping::None)),
            Passthrough => (Strategy::Passthrough, settings.clone()),
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub assumption: &'static str,
    pub instead: Instead,
    /// What would happen to a job otherwise.
    pub otherwise: &'static str,
}

const fn need(assumption: &'static str, instead: Instead, otherwise: &'static str) -> Need {
    Need {
        assumption,
        instead,
        otherwise,
    }
}

impl Need {
    /// Mapped memory is a need of the strategies that map it, all else of every strategy with a policy.
    fn is_of(&self, strategy: Strategy) -> bool {
        match self.instead {
            Passthrough => strategy != Strategy::Passthrough,
            MapOnce | Chunks => strategy.maps_granules(),
        }
    }
}

const EARLY: &str = "a freed block could be used again while work still uses it";
const WAITS: &str = "an allocation would wait for the work of the device";
const COPIES: &str = "copies between devices would fail";
const LOST: &str = "bytes could be lost";
const FREE_IN_CAPTURE: &str = "a free would break a stream capture";
const ALLOCATION_IN_CAPTURE: &str = "an allocation would break a stream capture of another thread";
const UNUSABLE: &str = "mapped memory could not be used";
const LOST_BY_OTHERS: &str = "memory of another process could be lost";
const ACCESS: &str = "a device could lose the access to its own memory";

/// If events of contexts cover their streams, a free that waits for less does no harm.
const NEEDED_WITHOUT_EVENTS: &str = "free_waits_for_unrelated_work";
const EVENTS: &str = "context_event_covers_its_streams";

pub const NEEDS: &[Need] = &[
    need(EVENTS, Passthrough, EARLY),
    need("synchronise_covers_green_contexts", Passthrough, EARLY),
    need(NEEDED_WITHOUT_EVENTS, Passthrough, EARLY),
    need("event_query_beside_blocked_work", Passthrough, WAITS),
    need("questions_beside_blocked_work", Passthrough, WAITS),
    need("event_record_in_capture", Passthrough, FREE_IN_CAPTURE),
    need("relaxed_thread_beside_capture", Passthrough, ALLOCATION_IN_CAPTURE),
    need("granularity", Chunks, "no memory could be mapped"),
    need("one_set_access_over_many_mappings", Chunks, UNUSABLE),
    need("unmap_over_many_mappings", Chunks, "memory could not be given back"),
    need("handles_of_several_sizes", Chunks, UNUSABLE),
    need("release_while_mapped", Chunks, LOST_BY_OTHERS),
    need("peer_copy_of_vmm_between_devices", Chunks, COPIES),
    need("peer_copy_of_rows_of_vmm", Chunks, COPIES),
    need("peer_copy_on_another_device", Chunks, COPIES),
    need("copy_of_vmm_in_capture", Chunks, COPIES),
    need("access_for_one_more_device", Chunks, ACCESS),
    need("create_map_access_beside_blocked_work", Chunks, WAITS),
    need("vmm_in_capture", Chunks, "growth would break a stream capture"),
    need("one_handle_at_two_addresses", MapOnce, LOST),
    need("stitch_of_handles", MapOnce, LOST),
    need("alias_between_kernels", MapOnce, LOST),
    need("alias_survives_unmap_of_other", MapOnce, LOST),
    need("alias_beside_blocked_work", MapOnce, WAITS),
    need("peer_access_to_alias", MapOnce, "a peer could not use a block"),
];

/// What a strategy has to do without, and the rows that say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallBack {
    pub instead: Instead,
    /// The rows that ask for it.
    pub reasons: Vec<&'static Need>,
}

impl FallBack {
    /// `None` if everything holds that the strategy needs.
    pub fn of(strategy: Strategy, verdict: &Verdict) -> Option<FallBack> {
        let fails = |name: &str| verdict.of(name).is_some_and(Outcome::fails);
        let holds = |name: &str| verdict.of(name) == Some(Outcome::Holds);
        let asks = |need: &&Need| {
            let is_needless = need.assumption == NEEDED_WITHOUT_EVENTS && holds(EVENTS);
            need.is_of(strategy) && fails(need.assumption) && !is_needless
        };
        let mut reasons: Vec<&Need> = NEEDS.iter().filter(asks).collect();
        let instead = reasons.iter().map(|need| need.instead).max()?;
        reasons.retain(|need| need.instead == instead);
        Some(FallBack { instead, reasons })
    }

    /// One line of words: which assumptions do not hold, and what would happen to a job.
    pub fn why(&self) -> String {
        let names: Vec<&str> = self.reasons.iter().map(|need| need.assumption).collect();
        let mut dangers: Vec<&str> = self.reasons.iter().map(|need| need.otherwise).collect();
        dangers.dedup();
        let verb = if names.len() == 1 { "does" } else { "do" };
        format!("{} {verb} not hold here ({})", names.join(", "), dangers.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(failing: &[&str], holding: &[&str]) -> Verdict {
        let outcomes = |names: &[&str], outcome| -> Vec<(String, Outcome)> {
            names.iter().map(|&name| (name.to_owned(), outcome)).collect()
        };
        let outcomes = [outcomes(failing, Outcome::Hangs), outcomes(holding, Outcome::Holds)].concat();
        Verdict { asked_s: 0, outcomes }
    }

    fn without(strategy: Strategy, failing: &[&str], holding: &[&str]) -> Option<Instead> {
        FallBack::of(strategy, &verdict(failing, holding)).map(|fall_back| fall_back.instead)
    }

    #[test]
    fn the_strongest_row_decides() {
        let without = |failing: &[&str]| without(Strategy::AutoGrowth, failing, &[]);
        let two = ["stitch_of_handles", "alias_beside_blocked_work"];
        assert_eq!(without(&two), Some(MapOnce));
        let more = ["stitch_of_handles", "vmm_in_capture"];
        assert_eq!(without(&more), Some(Chunks));
        let most = ["stitch_of_handles", "vmm_in_capture", "event_query_beside_blocked_work"];
        assert_eq!(without(&most), Some(Passthrough));
        let fall_back = FallBack::of(Strategy::AutoGrowth, &verdict(&more, &[])).unwrap();
        let why = "vmm_in_capture does not hold here (growth would break a stream capture)";
        assert_eq!(fall_back.why(), why, "only what asks for chunks");
    }

    #[test]
    fn a_strategy_falls_back_for_what_it_needs_alone() {
        const QUERY: &str = "event_query_beside_blocked_work";
        const FREE: &str = "free_waits_for_unrelated_work";
        type Names = &'static [&'static str];
        let cases: [(Strategy, Names, Names, Option<Instead>); 5] = [
            (Strategy::NaiveBestFit, &["stitch_of_handles", "granularity"], &[], None),
            (Strategy::Passthrough, &[QUERY], &[], None),
            (Strategy::AutoGrowth, &["alignment_of_alloc"], &[], None),
            // A free that waits less matters only without events of contexts.
            (Strategy::NaiveBestFit, &[FREE], &[EVENTS], None),
            (Strategy::NaiveBestFit, &[FREE], &[], Some(Passthrough)),
        ];
        for (strategy, failing, holding, instead) in cases {
            let found = without(strategy, failing, holding);
            assert_eq!(found, instead, "{strategy:?}, {failing:?}");
        }
    }

    #[test]
    fn each_assumption_has_one_row() {
        let mut names: Vec<&str> = NEEDS.iter().map(|need| need.assumption).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NEEDS.len());
    }
}
