//! Checks whether the loader can preload the library into the command.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Setup;
use super::report::Findings;
use crate::launch::binary::{self, Binary, Kind, OUR_MACHINE, machine_name};
use crate::launch::environment::Environment;

/// The most scripts that are followed from `#!` line to `#!` line.
const MOST_SCRIPTS: usize = 4;

/// Notes whether the command can be run on this machine.
pub fn check(told: &mut Findings, setup: &mut Setup) {
    let Some(name) = setup.command.first() else { return };
    let mut name = name.clone();
    let mut script = String::new();
    for _ in 0..=MOST_SCRIPTS {
        told.look_at(name.to_string_lossy());
        let Some(path) = find(setup.environment, &name) else {
            told.problem(format!(
                "{script}{}: not found, or not executable",
                name.to_string_lossy()
            ))
            .advise("Check its name, its #! line and PATH.");
            setup.is_usable = false;
            return;
        };
        told.look_at(base::text::shown(&path));
        privileged(told, &path);
        match binary::read(&path) {
            Ok(Kind::Elf(elf)) => return program(told, &elf, &script),
            Ok(Kind::Elf32 { machine }) => {
                told.problem(format!("{script}it is a program for {}", machine_name(machine)))
                    .advise("The library and the CUDA driver are for 64-bit programs only: take a 64-bit build.");
                return;
            }
            Ok(Kind::Script(line)) => {
                let mut parts = line.split_ascii_whitespace();
                let Some(interpreter) = parts.next() else { break };
                script = format!("a script for {line}: ");
                // `env` runs the first word that is neither an option nor an assignment.
                let asked = parts.find(|part| !part.starts_with('-') && !part.contains('='));
                name = match asked {
                    Some(program) if interpreter.ends_with("/env") => program.into(),
                    _ => interpreter.into(),
                };
            }
            Ok(Kind::Other) => {
                told.note("it is neither an ELF program nor a script with a #! line, so a shell runs it");
                return;
            }
            Err(error) => {
                told.note(format!("it cannot be read: {error}"))
                    .advise("The command is run nevertheless.");
                return;
            }
        }
    }
    told.note("the program in its #! line was not found");
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
fn privileged(told: &mut Findings, path: &Path) {
    let Ok(about) = path.metadata() else { return };
    // SAFETY: getuid and getgid have no preconditions.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let mode = about.permissions().mode();
    let gains = mode & libc::S_ISUID != 0 && about.uid() != user || mode & libc::S_ISGID != 0 && about.gid() != group;
    let finding = if gains {
        told.problem("it is setuid or setgid: the loader drops LD_PRELOAD")
    } else if mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
        told.warning("it is setuid or setgid: the loader drops LD_PRELOAD for all users but its owner")
    } else if has_capabilities(path) {
        told.problem("it has file capabilities: the loader drops LD_PRELOAD")
    } else {
        return;
    };
    finding.advise(
        "Nothing of it is recorded. Run what it starts under vramshim run instead, or give the rights to the user.",
    );
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: both names are C strings; without a buffer the call writes nothing and returns the length of the value.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn program(told: &mut Findings, elf: &Binary, script: &str) {
    if elf.machine != OUR_MACHINE {
        told.problem(format!("{script}it is a program for {}", machine_name(elf.machine)))
            .advise(format!("This machine is {}.", machine_name(OUR_MACHINE)));
        return;
    }
    let Some(loader) = &elf.interpreter else {
        told.warning(format!(
            "{script}it is linked statically: LD_PRELOAD has no effect in it"
        ))
        .advise("Its own calls are not recorded; those of programs that it starts are, if these are not static.");
        return;
    };
    if loader.contains("musl") {
        told.problem(format!("{script}it runs on musl, whose loader cannot load the library"))
            .advise("Take a program built for glibc.");
        return;
    }
    let linked_to = |name: &str| elf.needed.iter().find(|needed| needed.starts_with(name));
    let linked = ["libcudart.so", "libcuda.so"].into_iter().filter_map(linked_to);
    let linked: Vec<&str> = linked.map(String::as_str).collect();
    let to = if linked.is_empty() { "" } else { ", linked to " };
    told.ok(format!("{script}a dynamic program{to}{}", linked.join(" and ")));
}
