//! Checks the other preloaded libraries: which functions each one hooks, which project it comes from, and whether it
//! stands before the library.

use std::path::{Path, PathBuf};

use base::text::shown;

use super::report::Findings;
use crate::launch::binary::{self, Binary, Kind};
use crate::launch::environment::Environment;

const CHECK: &str = "preload";
pub const SYSTEM_PRELOADS: &str = "/etc/ld.so.preload";

/// Known layers: file name, project, and what the layer does.
const KNOWN: &[(&str, &str, &str)] = &[
    ("libvgpu.so", "HAMi-core", "limits memory and cores"),
    ("libvgpu-control.so", "vgpu-manager", "limits memory and cores"),
    ("libcuda-control.so", "vcuda (gpu-manager)", "limits memory and cores"),
    (
        "libnvshare.so",
        "nvshare",
        "turns device memory into managed memory and takes turns on the device",
    ),
    (
        "libgemhook.so",
        "Gemini (KubeShare)",
        "limits memory and takes turns on the device",
    ),
    (
        "libcuda_limiter.so",
        "Tensor Fusion (vgpu.rs)",
        "limits memory and cores",
    ),
];

fn known(path: &Path) -> Option<(&'static str, &'static str)> {
    let name = path.file_name()?.to_string_lossy();
    let entry = KNOWN.iter().find(|(file, _, _)| name.starts_with(file))?;
    Some((entry.1, entry.2))
}

/// The project that a library with this path comes from, if it is known.
pub fn project(path: &Path) -> Option<&'static str> {
    // HAMi mounts its library in this folder, with the file name of the driver.
    let folder = path.starts_with("/usr/local/vgpu").then_some("HAMi-core");
    known(path).map(|(project, _)| project).or(folder)
}

/// Which calls of CUDA and NVML a library takes; empty if it takes none.
fn hooks(elf: &Binary) -> String {
    // `count` requires a capital letter behind the prefix, as in CUDA's names, so a library's own functions do not
    // count.
    let kinds = [("cu", "driver"), ("cuda", "runtime"), ("nvml", "NVML")];
    let kinds = kinds.iter().filter(|(start, _)| elf.count(start) > 0);
    let functions = kinds.map(|(_, what)| format!("functions of {what}"));
    let dlsym = elf.exports("dlsym").then(|| "dlsym".to_owned());
    dlsym.into_iter().chain(functions).collect::<Vec<_>>().join(", ")
}

/// The entries of `/etc/ld.so.preload`.
pub fn system_preloads() -> Vec<PathBuf> {
    let text = std::fs::read_to_string(SYSTEM_PRELOADS).unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let items = lines.flat_map(|line| line.split([' ', '\t', ':']));
    items.filter(|item| !item.is_empty()).map(PathBuf::from).collect()
}

/// The layer that stands before the library and takes the job's requests for memory, if there is one.
pub fn in_front(environment: &Environment) -> Option<PathBuf> {
    [environment.preloads(), system_preloads()].iter().find_map(|paths| {
        let ours = paths.iter().position(|path| environment.is_library(path))?;
        paths[..ours].iter().find(|path| takes_memory(path)).cloned()
    })
}

/// Whether the library behind this path takes requests for memory.
fn takes_memory(path: &Path) -> bool {
    matches!(binary::read(path), Ok(Kind::Elf(elf)) if elf.exports("cuMemAlloc_v2") && !elf.exports("vramshim_version"))
}

/// Adds a problem if a layer before the library takes the job's requests for memory. `paths` are all entries of `place`.
/// Returns whether there is such a layer.
fn layer_in_front(findings: &mut Findings, environment: &Environment, paths: &[PathBuf], place: &str) -> bool {
    let Some(ours) = paths.iter().position(|path| environment.is_library(path)) else {
        return false;
    };
    let Some(front) = paths[..ours].iter().find(|path| takes_memory(path)) else {
        return false;
    };
    let mut order: Vec<&PathBuf> = paths.iter().filter(|path| !environment.is_library(path)).collect();
    order.insert(0, &paths[ours]);
    let order: Vec<String> = order.iter().map(|path| path.display().to_string()).collect();
    let order = match place {
        SYSTEM_PRELOADS => format!("in {place}: {}", order.join(" ")),
        _ => format!("{place}={}", order.join(":")),
    };
    findings.problem(
        "order",
        format!(
            "{} stands before the library and takes the job's requests for memory",
            front.display()
        ),
        format!(
            "That layer does not see what a strategy reserves, so the library passes every request through. Name the \
                 library first, {order}"
        ),
        place,
    );
    true
}

pub fn check(findings: &mut Findings, environment: &Environment) {
    let mut in_front = Vec::new();
    let mut ours_seen = false;
    let is_hidden = layer_in_front(findings, environment, &environment.preloads(), "LD_PRELOAD")
        | layer_in_front(findings, environment, &system_preloads(), SYSTEM_PRELOADS);
    for path in environment.preloads() {
        if environment.is_library(&path) {
            if ours_seen {
                continue;
            }
            ours_seen = true;
            if !is_hidden {
                place(findings, &in_front);
            }
        } else if !environment.is_stand_in(&path) {
            let hooks_dlsym = layer(findings, &path, "LD_PRELOAD", ours_seen);
            if hooks_dlsym && !ours_seen {
                in_front.push(path);
            }
        }
    }
    for path in system_preloads() {
        if environment.is_library(&path) {
            findings.note(
                CHECK,
                "the library is preloaded into every program of this machine",
                "The library does nothing in programs without CUDA; VRAMSHIM_JOURNAL_MAX=0 turns journals off.",
                SYSTEM_PRELOADS,
            );
        } else {
            layer(findings, &path, SYSTEM_PRELOADS, ours_seen);
        }
    }
    if let Some(tool) = environment.text("CUDA_INJECTION64_PATH") {
        findings.note(
            CHECK,
            "the driver loads a tool into the job (CUDA_INJECTION64_PATH)",
            "A profiler also takes device memory, which is not in the journal.",
            tool,
        );
    }
}

/// Adds a finding about a preloaded library, which stands behind ours if `is_behind`. Returns true if that library exports
/// `dlsym`.
fn layer(findings: &mut Findings, path: &Path, place: &str, is_behind: bool) -> bool {
    let shown = shown(path);
    // The loader searches its folders for a name without a slash, so the second `Err` below is no warning.
    let elf = match binary::read(path) {
        Ok(Kind::Elf(elf)) => elf,
        Ok(_) => {
            findings.warning(
                CHECK,
                format!("{place} names {shown}, which is no library of this machine"),
                "The loader prints an error and goes on: remove the entry.",
                place,
            );
            return false;
        }
        Err(_) if !path.to_string_lossy().contains('/') => {
            let found = known(path).map_or_else(
                || format!("{shown} is preloaded"),
                |(project, does)| format!("{shown} is preloaded: {project}, {does}"),
            );
            findings.note(CHECK, found, "", place);
            return false;
        }
        Err(error) => {
            findings.warning(
                CHECK,
                format!("{place} names {shown}, which cannot be read: {error}"),
                "The loader prints an error and goes on without it: mount the file, or remove the entry.",
                place,
            );
            return false;
        }
    };
    if elf.exports("vramshim_version") {
        findings.warning(
            CHECK,
            format!("{shown} is another copy of the library"),
            "Two copies would count each other's memory: name only one of them.",
            place,
        );
        return true;
    }
    let hooks = hooks(&elf);
    match known(path) {
        Some((project, does)) => {
            findings.note(
                CHECK,
                format!("{shown} is preloaded: {project}, {does}"),
                if is_behind {
                    "The library calls it as the next layer; the limits of that layer hold."
                } else {
                    "The job calls it first, and it calls the library."
                },
                place,
            );
        }
        None if hooks.is_empty() => {
            findings.ok(
                CHECK,
                format!("{shown} is preloaded, and exports no function of CUDA"),
                place,
            );
        }
        None => {
            findings.note(
                    CHECK,
                    format!("{shown} is preloaded and exports {hooks}: it is a layer between job and driver"),
                    "The library works with such layers. `vramshim doctor -- COMMAND` shows whether the command's calls reach it.", place);
        }
    }
    elf.exports("dlsym")
}

/// Adds a finding about the libraries that answer `dlsym` before the library does.
fn place(findings: &mut Findings, in_front: &[PathBuf]) {
    match in_front.first() {
        None => {
            findings.ok("order", "the library is the first that answers dlsym", "");
        }
        Some(front) => {
            findings.note(
                "order",
                format!("{} answers dlsym before the library", shown(front)),
                "Then calls reach us through it, and what it keeps to itself is not seen. That works with layers that \
                     look for the next one (RTLD_NEXT, or the driver by handle); else name libvramshim.so first, as \
                     vramshim run does.",
                "LD_PRELOAD",
            );
        }
    }
}
