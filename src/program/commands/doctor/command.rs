//! Checks whether the loader can preload the library into the command.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base::text::shown;

use super::report::Findings;
use crate::launch::binary::{self, Binary, Kind, OUR_MACHINE, machine_name};
use crate::launch::environment::Environment;

const CHECK: &str = "command";
/// The most scripts that are followed from `#!` line to `#!` line.
const MOST_SCRIPTS: usize = 4;

/// Returns true if the command can be run on this machine.
pub fn check(findings: &mut Findings, environment: &Environment, name: &OsStr) -> bool {
    let mut name = name.to_owned();
    let mut shown = String::new();
    for _ in 0..=MOST_SCRIPTS {
        let Some(path) = find(environment, &name) else {
            findings.problem(
                CHECK,
                format!("{}{}: not found, or not executable", shown, name.to_string_lossy()),
                "Check its name, its #! line and PATH.",
                name.to_string_lossy(),
            );
            return false;
        };
        let place = base::text::shown(&path);
        privileged(findings, &path);
        match binary::read(&path) {
            Ok(Kind::Elf(elf)) => return program(findings, &elf, &place, &shown),
            Ok(Kind::Elf32 { machine }) => {
                findings.problem(
                    CHECK,
                    format!("{shown}it is a program for {}", machine_name(machine)),
                    "The library and the CUDA driver are for 64-bit programs only: take a 64-bit build.",
                    place,
                );
                return true;
            }
            Ok(Kind::Script(line)) => {
                let mut parts = line.split_ascii_whitespace();
                let Some(interpreter) = parts.next() else { break };
                shown = format!("a script for {line}: ");
                // `env` runs the first word that is neither an option nor an assignment.
                let asked = parts.find(|part| !part.starts_with('-') && !part.contains('='));
                name = match asked {
                    Some(program) if interpreter.ends_with("/env") => program.into(),
                    _ => interpreter.into(),
                };
            }
            Ok(Kind::Other) => {
                findings.note(
                    CHECK,
                    "it is neither an ELF program nor a script with a #! line, so a shell runs it",
                    "",
                    place,
                );
                return true;
            }
            Err(error) => {
                findings.note(
                    CHECK,
                    format!("it cannot be read: {error}"),
                    "The command is run nevertheless.",
                    place,
                );
                return true;
            }
        }
    }
    findings.note(
        CHECK,
        "the program in its #! line was not found",
        "",
        name.to_string_lossy(),
    );
    true
}

/// Finds the file of a command as a shell does; `None` if no such file can be executed.
fn find(environment: &Environment, name: &OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| {
        path.metadata()
            .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| runs(path));
    }
    let folders = environment.get("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|path| runs(path))
}

/// Checks for setuid, setgid and file capabilities. The loader ignores `LD_PRELOAD` for a program that gains rights.
fn privileged(findings: &mut Findings, path: &Path) {
    let Ok(about) = path.metadata() else { return };
    // SAFETY: getuid and getgid have no preconditions.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let mode = about.permissions().mode();
    let gains = mode & libc::S_ISUID != 0 && about.uid() != user || mode & libc::S_ISGID != 0 && about.gid() != group;
    let place = shown(path);
    let advice = "Nothing of it is recorded. Run what it starts under vramshim run instead, or give the rights to the \
                  user.";
    if gains {
        findings.problem(
            CHECK,
            "it is setuid or setgid: the loader drops LD_PRELOAD",
            advice,
            place,
        );
    } else if mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
        findings.warning(
            CHECK,
            "it is setuid or setgid: the loader drops LD_PRELOAD for all users but its owner",
            advice,
            place,
        );
    } else if has_capabilities(path) {
        findings.problem(
            CHECK,
            "it has file capabilities: the loader drops LD_PRELOAD",
            advice,
            place,
        );
    }
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: both names are C strings; without a buffer the call writes nothing and returns the length of the value.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn program(findings: &mut Findings, elf: &Binary, place: &str, shown: &str) -> bool {
    if elf.machine != OUR_MACHINE {
        findings.problem(
            CHECK,
            format!("{shown}it is a program for {}", machine_name(elf.machine)),
            format!("This machine is {}.", machine_name(OUR_MACHINE)),
            place,
        );
        return true;
    }
    let Some(loader) = &elf.interpreter else {
        findings.warning(
            CHECK,
            format!("{shown}it is linked statically: LD_PRELOAD has no effect in it"),
            "Its own calls are not recorded; those of programs that it starts are, if these are not static.",
            place,
        );
        return true;
    };
    if loader.contains("musl") {
        findings.problem(
            CHECK,
            format!("{shown}it runs on musl, whose loader cannot load the library"),
            "Take a program built for glibc.",
            place,
        );
        return true;
    }
    let runtime = elf.needed.iter().find(|needed| needed.starts_with("libcudart.so"));
    let driver = elf.needed.iter().find(|needed| needed.starts_with("libcuda.so"));
    let linked: Vec<&str> = runtime.into_iter().chain(driver).map(String::as_str).collect();
    let about = match linked.as_slice() {
        [] => "a dynamic program".to_owned(),
        linked => format!("a dynamic program, linked to {}", linked.join(" and ")),
    };
    findings.ok(CHECK, format!("{shown}{about}"), place);
    true
}
