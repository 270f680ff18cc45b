//! Checks the library: whether it exists, fits this machine, and is loaded if it is preloaded.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base::text::shown;

use super::Setup;
use super::ask::ask_by;
use super::report::Findings;
use crate::launch::environment::Environment;
use crate::launch::library::{check_loads, preload};
use crate::launch::processes::End;

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
    let elf = match check_loads(path) {
        Ok(elf) => elf,
        Err(why) => {
            told.problem(why.message()).advise(REINSTALL);
            return;
        }
    };
    if !elf.exports("vramshim_version") {
        told.problem("it is another library").advise(REINSTALL);
    } else if let Err(failure) = preload(&[path.to_owned()]) {
        told.problem(failure.message())
            .advise("Move or link the library to a path without a colon or space.");
    } else if let Some(why) = why_not_loaded(setup.environment, path, setup.timeout) {
        told.problem(format!("it was preloaded but is not in the process: {why}"))
            .advise(REINSTALL);
    } else {
        told.ok("the loader takes it");
    }
}

/// Preloads only the library into a child process. The loader says on standard error why it leaves a library out.
fn why_not_loaded(environment: &Environment, path: &Path, limit: Duration) -> Option<String> {
    let mut child = Command::new("/proc/self/exe");
    environment.apply(child.arg("--version"), &[path.to_owned()]);
    let answer = match ask_by(&mut child, limit) {
        Ok(answer) => answer,
        Err(error) => return Some(error.to_string()),
    };
    match answer.error_text.trim().lines().next() {
        Some(line) => Some(line.to_owned()),
        None if matches!(answer.end, End::By(status) if status.success()) => None,
        None => Some(answer.failure("the program", "starting", limit)),
    }
}
