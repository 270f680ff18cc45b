//! What each strategy needs of the driver, and what it does without it: one table.
//!
//! The assumptions are the probes of `tests/assumptions`, by name. `vramshim doctor --assumptions` asks them and keeps
//! the answers (`base::verdict`); the library reads the answers when a pool begins. An assumption that was not asked
//! counts as one that holds.

use base::verdict::{Outcome, Verdict};

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
            Instead::MapOnce => "maps memory once, without stitches",
            Instead::Chunks => "grows in chunks, which can be left fragmented",
            Instead::Passthrough => "passes every request through",
        }
    }

    /// The strategy and settings that are left.
    pub fn apply(self, strategy: Strategy, settings: &Settings) -> (Strategy, Settings) {
        let with = |mapping| Settings {
            mapping,
            ..settings.clone()
        };
        match self {
            Instead::MapOnce => (strategy, with(Mapping::Once)),
            Instead::Chunks => (strategy, with(Mapping::None)),
            Instead::Passthrough => (Strategy::Passthrough, settings.clone()),
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub assumption: &'static str,
    /// If this other assumption holds, the row says nothing.
    unless: Option<&'static str>,
    strategies: &'static [Strategy],
    pub instead: Instead,
    /// What would happen to a job otherwise.
    pub otherwise: &'static str,
}

const POLICIES: &[Strategy] = &[Strategy::NaiveBestFit, Strategy::AutoGrowth];
const MAPPED: &[Strategy] = &[Strategy::AutoGrowth];

const fn both(assumption: &'static str, otherwise: &'static str) -> Need {
    need(assumption, POLICIES, Instead::Passthrough, otherwise)
}

const fn mapped(assumption: &'static str, instead: Instead, otherwise: &'static str) -> Need {
    need(assumption, MAPPED, instead, otherwise)
}

const fn need(
    assumption: &'static str,
    strategies: &'static [Strategy],
    instead: Instead,
    otherwise: &'static str,
) -> Need {
    Need {
        assumption,
        unless: None,
        strategies,
        instead,
        otherwise,
    }
}

const EARLY: &str = "a freed block could be used again while work still uses it";
const WAITS: &str = "an allocation would wait for the work of the device";
const COPIES: &str = "copies between devices would fail";
const LOST: &str = "bytes could be lost";

pub const NEEDS: &[Need] = &[
    both("context_event_covers_its_streams", EARLY),
    both("synchronise_covers_green_contexts", EARLY),
    Need {
        unless: Some("context_event_covers_its_streams"),
        ..both("free_waits_for_unrelated_work", EARLY)
    },
    both("event_query_beside_blocked_work", WAITS),
    both("questions_beside_blocked_work", WAITS),
    both("event_record_in_capture", "a free would break a stream capture"),
    both(
        "relaxed_thread_beside_capture",
        "an allocation would break a stream capture of another thread",
    ),
    mapped("granularity", Instead::Chunks, "no memory could be mapped"),
    mapped(
        "one_set_access_over_many_mappings",
        Instead::Chunks,
        "mapped memory could not be used",
    ),
    mapped(
        "unmap_over_many_mappings",
        Instead::Chunks,
        "memory could not be given back",
    ),
    mapped(
        "handles_of_several_sizes",
        Instead::Chunks,
        "mapped memory could not be used",
    ),
    mapped(
        "release_while_mapped",
        Instead::Chunks,
        "memory of another process could be lost",
    ),
    mapped("peer_copy_of_vmm_between_devices", Instead::Chunks, COPIES),
    mapped("peer_copy_of_rows_of_vmm", Instead::Chunks, COPIES),
    mapped("peer_copy_on_another_device", Instead::Chunks, COPIES),
    mapped("copy_of_vmm_in_capture", Instead::Chunks, COPIES),
    mapped(
        "access_for_one_more_device",
        Instead::Chunks,
        "a device could lose the access to its own memory",
    ),
    mapped("create_map_access_beside_blocked_work", Instead::Chunks, WAITS),
    mapped("vmm_in_capture", Instead::Chunks, "growth would break a stream capture"),
    mapped("one_handle_at_two_addresses", Instead::MapOnce, LOST),
    mapped("stitch_of_handles", Instead::MapOnce, LOST),
    mapped("alias_between_kernels", Instead::MapOnce, LOST),
    mapped("alias_survives_unmap_of_other", Instead::MapOnce, LOST),
    mapped("alias_beside_blocked_work", Instead::MapOnce, WAITS),
    mapped("peer_access_to_alias", Instead::MapOnce, "a peer could not use a block"),
];

/// What a strategy has to do without, and the rows that say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallBack {
    pub instead: Instead,
    /// The assumptions that ask for it, and what would happen otherwise.
    pub reasons: Vec<(&'static str, &'static str)>,
}

impl FallBack {
    /// `None` if everything holds that the strategy needs.
    pub fn of(strategy: Strategy, verdict: &Verdict) -> Option<FallBack> {
        let fails = |name: &str| verdict.of(name).is_some_and(Outcome::fails);
        let holds = |name: &str| verdict.of(name) == Some(Outcome::Holds);
        let asks = |need: &&Need| {
            need.strategies.contains(&strategy) && fails(need.assumption) && !need.unless.is_some_and(holds)
        };
        let rows: Vec<&Need> = NEEDS.iter().filter(asks).collect();
        let instead = rows.iter().map(|need| need.instead).max()?;
        let reasons = rows.iter().filter(|need| need.instead == instead);
        Some(FallBack {
            instead,
            reasons: reasons.map(|need| (need.assumption, need.otherwise)).collect(),
        })
    }

    /// One line of words: which assumptions do not hold, and what would happen to a job.
    pub fn why(&self) -> String {
        let names: Vec<&str> = self.reasons.iter().map(|&(name, _)| name).collect();
        let mut dangers: Vec<&str> = self.reasons.iter().map(|&(_, otherwise)| otherwise).collect();
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
        let aliases = ["stitch_of_handles", "alias_beside_blocked_work"];
        assert_eq!(without(Strategy::AutoGrowth, &aliases, &[]), Some(Instead::MapOnce));
        let more = ["stitch_of_handles", "vmm_in_capture"];
        assert_eq!(without(Strategy::AutoGrowth, &more, &[]), Some(Instead::Chunks));
        let most = ["stitch_of_handles", "vmm_in_capture", "event_query_beside_blocked_work"];
        assert_eq!(without(Strategy::AutoGrowth, &most, &[]), Some(Instead::Passthrough));
        let fall_back = FallBack::of(Strategy::AutoGrowth, &verdict(&more, &[])).unwrap();
        let why = "vmm_in_capture does not hold here (growth would break a stream capture)";
        assert_eq!(fall_back.why(), why, "only what asks for chunks");
    }

    #[test]
    fn a_strategy_falls_back_for_what_it_needs_alone() {
        assert_eq!(
            without(Strategy::NaiveBestFit, &["stitch_of_handles", "granularity"], &[]),
            None
        );
        assert_eq!(
            without(Strategy::Passthrough, &["event_query_beside_blocked_work"], &[]),
            None
        );
        assert_eq!(without(Strategy::AutoGrowth, &["alignment_of_alloc"], &[]), None);
    }

    #[test]
    fn a_free_that_waits_less_matters_only_without_events_of_contexts() {
        let (free, event) = ("free_waits_for_unrelated_work", "context_event_covers_its_streams");
        assert_eq!(without(Strategy::NaiveBestFit, &[free], &[event]), None);
        assert_eq!(
            without(Strategy::NaiveBestFit, &[free], &[]),
            Some(Instead::Passthrough)
        );
    }

    #[test]
    fn each_assumption_has_one_row() {
        let mut names: Vec<&str> = NEEDS.iter().map(|need| need.assumption).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NEEDS.len());
    }
}
