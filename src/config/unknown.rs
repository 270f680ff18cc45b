//! Variables whose names begin as ours, but that nothing reads: most likely a typing error, which would otherwise have
//! no effect without a word.

use std::ffi::OsString;

use base::text::printable;

use crate::read::LONGEST_SHOWN;
use crate::table::VARIABLES;

/// Variables of the scripts and tests of this project. Neither the library nor the program reads them.
const OF_SCRIPTS: &[&str] = &[
    "VRAMSHIM_ARTIFACTS",
    "VRAMSHIM_CACHE",
    "VRAMSHIM_CHROMIUM",
    "VRAMSHIM_FRAMEWORKS",
    "VRAMSHIM_NEED_CHROMIUM",
    "VRAMSHIM_PYTHONS",
];
const OF_TESTS: &str = "VRAMSHIM_TEST_";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{} is no variable of vramshim; `vramshim variables` lists them", printable(.0, LONGEST_SHOWN))]
pub struct Unknown(pub String);

/// The variables among `names` that nothing reads, in the order of their names.
pub fn unknown_variables(names: impl Iterator<Item = OsString>) -> Vec<Unknown> {
    let known = |name: &str| {
        VARIABLES.iter().any(|variable| variable.name == name)
            || OF_SCRIPTS.contains(&name)
            || name.starts_with(OF_TESTS)
    };
    let names = names.filter_map(|name| name.into_string().ok());
    let ours = names.filter(|name| name.starts_with("VRAMSHIM_"));
    let mut unknown: Vec<Unknown> = ours.filter(|name| !known(name)).map(Unknown).collect();
    unknown.sort();
    unknown
}
