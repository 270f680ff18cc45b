//! Checks the library: whether it exists, fits this machine, and is loaded if it is preloaded.

use base::text::shown;

use super::Setup;
use super::report::Findings;
use crate::launch::binary;

const REINSTALL: &str = "Take the libvramshim.so that was built with this program (scripts/build).";

pub fn check(told: &mut Findings, setup: &mut Setup) {
    let Some(path) = &setup.environment.library else {
        let why = setup
            .no_library
            .as_ref()
            .map_or("no library", |failure| failure.message());
        told.problem(why).advise("Build it (scripts/build), or give its path.");
        return;
    };
    told.look_at(shown(path));
    let is_ours = matches!(binary::read(path), Ok(Some(elf)) if elf.exports("vramshim_version"));
    match setup.environment.check_loads(std::slice::from_ref(path)) {
        Err(why) => told.problem(why.message()).advise(REINSTALL),
        Ok(()) if !is_ours => told.problem("it is another library").advise(REINSTALL),
        Ok(()) => told.ok("the loader takes it"),
    };
}
