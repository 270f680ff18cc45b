//! Settings that may change while the job runs: their names, and their values.

use std::time::Duration;

use crate::parse::{duration_or_never, stack_depth};
use crate::settings::Stacks;
use crate::table::{self, VARIABLES, Variable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Stacks(Stacks),
    StackDepth(usize),
    IdleRelease(Option<Duration>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unchanged {
    #[error("no setting has this name; settings that may change: {}", Change::names().join(", "))]
    UnknownName,
    #[error("the setting is fixed when the job starts; settings that may change: {}", Change::names().join(", "))]
    Fixed,
    #[error("the value is not accepted; accepted: {0}")]
    BadValue(&'static str),
}

type ParseChange = fn(&str) -> Option<Change>;

/// The variables whose settings may change, and how their values are read.
const CHANGEABLE: [(&Variable, ParseChange); 3] = [
    (&table::STACKS, |value| Stacks::parse(value).map(Change::Stacks)),
    (&table::STACK_DEPTH, |value| stack_depth(value).map(Change::StackDepth)),
    (&table::IDLE_RELEASE, |value| {
        duration_or_never(value).map(Change::IdleRelease)
    }),
];

/// The short name of a variable's setting: without `VRAMSHIM_`, and in small letters.
fn short_name(variable: &Variable) -> Option<String> {
    variable.name.strip_prefix("VRAMSHIM_").map(str::to_ascii_lowercase)
}

fn is_name(name: &str, variable: &Variable) -> bool {
    name == variable.name || short_name(variable).is_some_and(|short| short == name)
}

impl Change {
    /// The short names of the settings that may change.
    pub fn names() -> Vec<String> {
        CHANGEABLE
            .iter()
            .filter_map(|(variable, _)| short_name(variable))
            .collect()
    }

    /// Reads the name of a setting, such as `stacks`, and its new value.
    pub fn parse(name: &str, value: &str) -> Result<Change, Unchanged> {
        let Some((variable, parse)) = CHANGEABLE.iter().find(|(variable, _)| is_name(name, variable)) else {
            let is_known = VARIABLES.iter().any(|variable| is_name(name, variable));
            return Err(if is_known {
                Unchanged::Fixed
            } else {
                Unchanged::UnknownName
            });
        };
        parse(value.trim()).ok_or(Unchanged::BadValue((variable.accepted)()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_checked() {
        assert_eq!(Change::parse("stacks", "python"), Ok(Change::Stacks(Stacks::Python)));
        assert_eq!(Change::parse("VRAMSHIM_STACK_DEPTH", " 8 "), Ok(Change::StackDepth(8)));
        assert_eq!(Change::parse("idle_release", "0"), Ok(Change::IdleRelease(None)));
        assert_eq!(Change::parse("strategy", "auto_growth"), Err(Unchanged::Fixed));
        assert_eq!(Change::parse("FLAGS_free_idle_chunk", "1"), Err(Unchanged::Fixed));
        assert_eq!(Change::parse("stack", "python"), Err(Unchanged::UnknownName));
        assert!(matches!(Change::parse("stacks", "perl"), Err(Unchanged::BadValue(_))));
        assert_eq!(Change::names(), ["stacks", "stack_depth", "idle_release"]);
    }
}
