//! Finds the library, and makes the value of `LD_PRELOAD` for a job.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::text::shown;
use config::table;

use crate::failure::Failure;

const LIBRARY: &str = "libvramshim.so";
const HOST_GUARD: &str = "libvramshim_hostguard.so";

/// A part of vramshim: `variable` names it, or it lies at one of `places`, seen from the folder of this program.
pub fn find_part(
    what: &str,
    variable: &str,
    places: [&str; 2],
    how: &str,
    is_it: fn(&Path) -> bool,
) -> Result<PathBuf, Failure> {
    let named = std::env::var_os(variable).filter(|value| !value.is_empty());
    let places = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => places.map(|place| own_folder().join(place)).to_vec(),
    };
    let found = places.iter().find(|place| is_it(place));
    found.and_then(|place| place.canonicalize().ok()).ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| shown(place)).collect();
        let places = places.join(" or ");
        Failure::refused(format!("{what} not found at {places}; {how}, or name it in {variable}"))
    })
}

pub fn find_library(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        let path = given.canonicalize().ok().filter(|path| path.is_file());
        return path.ok_or_else(|| {
            let given = shown(given);
            Failure::refused(format!("--library {given}: no such file; give the path of {LIBRARY}"))
        });
    }
    let places = [LIBRARY, "../lib/libvramshim.so"];
    let how = "give its path with --library";
    find_part(LIBRARY, table::LIBRARY.name, places, how, Path::is_file)
}

/// The program with the probes of `tests/assumptions`.
pub fn find_probes() -> Result<PathBuf, Failure> {
    let places = ["vramshim-assumptions", "../assumptions/vramshim-assumptions"];
    let how = "build it with `tests/assumptions/build target/assumptions`";
    find_part("vramshim-assumptions", table::PROBES.name, places, how, Path::is_file)
}

/// The library of `--host-guard`, which lies beside the main one.
pub fn find_host_guard(library: &Path) -> Result<PathBuf, Failure> {
    let path = library.with_file_name(HOST_GUARD);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Failure::refused(format!(
            "--host-guard needs {}, which is missing; build it (scripts/build), or leave the option and {} out",
            shown(&path),
            table::HOST_GUARD.name
        )))
    }
}

/// The folder of this program. The search for the library and the simulated GPU starts there.
pub fn own_folder() -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.to_owned()))
        .unwrap_or_default()
}

/// A value for `LD_PRELOAD`.
pub fn preload(libraries: &[PathBuf]) -> Result<OsString, Failure> {
    let mut items: Vec<&[u8]> = Vec::new();
    for library in libraries {
        let bytes = library.as_os_str().as_bytes();
        if bytes.iter().any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n')) {
            return Err(Failure::refused(format!(
                "{}: LD_PRELOAD cannot hold a path with a colon or a space; move or link the library elsewhere",
                shown(library)
            )));
        }
        items.push(bytes);
    }
    Ok(OsStr::from_bytes(&items.join(&b':')).to_owned())
}
