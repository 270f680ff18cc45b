//! Variables whose names begin as ours, but that nothing reads: most likely a typing error, which would otherwise have
//! no effect without a word.

use std::ffi::OsString;
use std::fmt;

use crate::table::VARIABLES;

const PREFIX: &str = "VRAMSHIM_";

/// Variables of the scripts and tests of this project. Neither the library nor the program reads them.
const OF_SCRIPTS: &[&str] = &[
    "VRAMSHIM_ARTIFACTS",
    "VRAMSHIM_CACHE",
    "VRAMSHIM_CHROMIUM",
    "VRAMSHIM_FRAMEWORKS",
    "VRAMSHIM_LIBRARY",
    "VRAMSHIM_NEED_CHROMIUM",
    "VRAMSHIM_PROBES",
    "VRAMSHIM_PROGRAM",
    "VRAMSHIM_PYTHONS",
];
const OF_TESTS: &str = "VRAMSHIM_TEST_";

/// A variable that nothing reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub name: String,
    /// The variable that was most likely meant.
    pub meant: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no variable of vramshim", self.name)?;
        match self.meant {
            Some(meant) => write!(f, "; did you mean {meant}?"),
            None => write!(f, "; `vramshim variables` lists them"),
        }
    }
}

/// The variables among `names` that nothing reads, in the order of their names.
pub fn unknown_variables(names: impl Iterator<Item = OsString>) -> Vec<Unknown> {
    let known = |name: &str| {
        VARIABLES.iter().any(|variable| variable.name == name)
            || OF_SCRIPTS.contains(&name)
            || name.starts_with(OF_TESTS)
    };
    let names = names.filter_map(|name| name.into_string().ok());
    let mut unknown: Vec<Unknown> = names
        .filter(|name| name.starts_with(PREFIX) && !known(name))
        .map(|name| Unknown {
            meant: meant_by(&name),
            name,
        })
        .collect();
    unknown.sort_by(|one, other| one.name.cmp(&other.name));
    unknown
}

/// The variable with the nearest name: with a few other letters, or with words more or less.
fn meant_by(name: &str) -> Option<&'static str> {
    const FEW: usize = 3;
    let rest = &name[PREFIX.len()..];
    let ours = VARIABLES.iter().filter_map(|variable| {
        let other = variable.name.strip_prefix(PREFIX)?;
        let words = |one: &str, other: &str| one.split('_').all(|word| other.split('_').any(|known| known == word));
        let near = distance(rest, other) <= FEW || words(rest, other) || words(other, rest);
        // The last words of a name say what it sets.
        near.then_some((!other.ends_with(rest), distance(rest, other), variable.name))
    });
    ours.min().map(|(.., name)| name)
}

/// How many letters must be put in, left out or replaced (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Vec<Option<&'static str>> {
        let unknown = unknown_variables(names.iter().map(OsString::from));
        unknown.into_iter().map(|unknown| unknown.meant).collect()
    }

    #[test]
    fn a_typing_error_is_found_and_the_meant_variable_named() {
        assert_eq!(of(&["VRAMSHIM_STRATGY"]), [Some("VRAMSHIM_STRATEGY")]);
        assert_eq!(of(&["VRAMSHIM_LIMIT"]), [Some("VRAMSHIM_MEMORY_LIMIT")]);
        assert_eq!(of(&["VRAMSHIM_JOURNAL_MAX_SIZE"]), [Some("VRAMSHIM_JOURNAL_MAX")]);
        assert_eq!(of(&["VRAMSHIM_COFFEE_MACHINE"]), [None]);
    }

    #[test]
    fn variables_that_somebody_reads_are_not_unknown() {
        assert_eq!(
            of(&["VRAMSHIM_DIR", "VRAMSHIM_TEST_SEED", "VRAMSHIM_ARTIFACTS", "PATH"]),
            []
        );
    }
}
