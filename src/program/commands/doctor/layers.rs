//! Checks the other preloaded libraries: whether each one is a layer, of which project, and whether it stands before the
//! library.

use std::path::{Path, PathBuf};

use base::layers::{Layer, known};
use base::text::shown;

use super::Setup;
use super::report::Findings;
use crate::launch::binary;
use crate::launch::environment::Environment;

const SYSTEM_PRELOADS: &str = "/etc/ld.so.preload";

/// What the loader preloads, by the place that names it.
fn preloads(environment: &Environment) -> [(&'static str, Vec<PathBuf>); 2] {
    let text = std::fs::read_to_string(SYSTEM_PRELOADS).unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let items = lines.flat_map(|line| line.split([' ', '\t', ':']));
    let system = items.filter(|item| !item.is_empty()).map(PathBuf::from).collect();
    [("LD_PRELOAD", environment.preloads()), (SYSTEM_PRELOADS, system)]
}

/// The layer that stands before the library and takes the job's requests for memory, if there is one.
pub fn in_front(environment: &Environment) -> Option<PathBuf> {
    preloads(environment)
        .iter()
        .find_map(|(_, paths)| before_ours(environment, paths).cloned())
}

fn before_ours<'p>(environment: &Environment, paths: &'p [PathBuf]) -> Option<&'p PathBuf> {
    let ours = paths.iter().position(|path| environment.is_library(path))?;
    let takes_memory = |path: &&PathBuf| matches!(binary::read(path), Ok(Some(elf)) if elf.exports("cuMemAlloc_v2") && !elf.exports("vramshim_version"));
    paths[..ours].iter().find(takes_memory)
}

pub fn check(told: &mut Findings, setup: &mut Setup) {
    let environment = setup.environment;
    let mut is_behind = false;
    let preloads = preloads(environment);
    for (place, paths) in &preloads {
        if let Some(front) = before_ours(environment, paths) {
            let front = front.display();
            let (ours, others): (Vec<&PathBuf>, _) = paths.iter().partition(|path| environment.is_library(path));
            let order: Vec<String> = ours.into_iter().chain(others).map(|path| shown(path)).collect();
            told.problem(format!(
                "{front} stands before the library and takes the job's requests for memory"
            ))
            .advise(format!(
                "That layer does not see what a strategy reserves, so the library passes every request through. Name \
                     the library first in {place}: {}",
                order.join(":")
            ))
            .of("order")
            .at(*place);
        }
        told.look_at(*place);
        for path in paths {
            if environment.is_library(path) {
                if *place == SYSTEM_PRELOADS {
                    told.note("the library is preloaded into every program of this machine").advise(
                        "The library does nothing in programs without CUDA; VRAMSHIM_JOURNAL_MAX=0 turns journals off.",
                    );
                }
                is_behind = true;
            } else if !environment.is_beside(path) {
                layer(told, path, is_behind);
            }
        }
    }
    if let Some(tool) = environment.text("CUDA_INJECTION64_PATH") {
        told.note("the driver loads a tool into the job (CUDA_INJECTION64_PATH)")
            .advise("A profiler also takes device memory, which is not in the journal.")
            .at(tool);
    }
}

/// Tells of a preloaded library, which stands behind ours if `is_behind`.
fn layer(told: &mut Findings, path: &Path, is_behind: bool) {
    let shown = shown(path);
    let elf = match binary::read(path) {
        Ok(Some(elf)) => elf,
        Ok(None) => {
            told.warning(format!("{shown} is no library of this machine"))
                .advise("The loader prints an error and goes on: remove the entry.");
            return;
        }
        // The loader searches its folders for a name without a slash.
        Err(_) if !path.to_string_lossy().contains('/') => {
            let about = known(path).map_or_else(String::new, |Layer { project, does, .. }| {
                format!(": {project}, {does}")
            });
            told.note(format!("{shown} is preloaded{about}"));
            return;
        }
        Err(error) => {
            told.warning(format!("{shown} cannot be read: {error}"))
                .advise("The loader prints an error and goes on without it: mount the file, or remove the entry.");
            return;
        }
    };
    if elf.exports("vramshim_version") {
        told.warning(format!("{shown} is another copy of the library"))
            .advise("Two copies would count each other's memory: name only one of them.");
    } else if let Some(Layer { project, does, .. }) = known(path) {
        told.note(format!("{shown} is preloaded: {project}, {does}"))
            .advise(if is_behind {
                "The library calls it as the next layer; the limits of that layer hold."
            } else {
                "The job calls it first, and it calls the library."
            });
    } else if !elf.takes_calls() {
        told.ok(format!("{shown} is preloaded, and exports no function of CUDA"));
    } else {
        told.note(format!(
            "{shown} is preloaded and takes calls of CUDA: it is a layer between job and driver"
        ))
        .advise("The library works with such layers.");
    }
}
