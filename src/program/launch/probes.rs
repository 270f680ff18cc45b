//! Finds the program with the probes of `tests/assumptions`.

use std::path::PathBuf;

use base::text::shown;
use config::table;

use super::library::own_folder;
use crate::failure::Failure;

const PROBES: &str = "vramshim-assumptions";

pub fn find_probes() -> Result<PathBuf, Failure> {
    let named = std::env::var_os(table::PROBES.name).filter(|value| !value.is_empty());
    let places = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => vec![
            own_folder().join(PROBES),
            own_folder().join("../assumptions").join(PROBES),
        ],
    };
    let found = places.iter().find(|place| place.is_file());
    found.cloned().ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| shown(place)).collect();
        Failure::refused(format!(
            "{PROBES} not found at {}; build it with `tests/assumptions/build target/assumptions`, or name it in {}",
            places.join(" or "),
            table::PROBES.name
        ))
    })
}
