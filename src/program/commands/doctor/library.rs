//! Checks the library: whether it exists, fits this machine, and is loaded if it is preloaded.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use base::text::shown;

use super::ask::ask;
use super::probe::What;
use super::report::Findings;
use crate::launch::binary::{self, Kind, OUR_MACHINE, machine_name};
use crate::launch::environment::Environment;
use crate::launch::library::{our_glibc, preload};
use crate::launch::processes::End;
use crate::render::format::duration;

const CHECK: &str = "library";

/// Returns true if a job can be started under the library.
pub fn check(findings: &mut Findings, environment: &Environment, path: &Path, limit: Duration) -> bool {
    let place = shown(path);
    let reinstall = "Take the libvramshim.so that was built with this program (scripts/build).";
    let elf = match binary::read(path) {
        Ok(Kind::Elf(elf)) => elf,
        Ok(Kind::Elf32 { .. }) => {
            findings.problem(CHECK, "it is a 32-bit library", reinstall, place);
            return false;
        }
        Ok(_) => {
            findings.problem(CHECK, "it is no library (not ELF, or damaged)", reinstall, place);
            return false;
        }
        Err(error) => {
            findings.problem(CHECK, format!("it cannot be read: {error}"), reinstall, place);
            return false;
        }
    };
    if elf.machine != OUR_MACHINE {
        let found = format!(
            "it is for {}, this machine is {}",
            machine_name(elf.machine),
            machine_name(OUR_MACHINE)
        );
        findings.problem(CHECK, found, reinstall, place);
        return false;
    }
    if !elf.exports("vramshim_version") {
        findings.problem(CHECK, "it is another library", reinstall, place);
        return false;
    }
    if let Err(failure) = preload(&[path.to_owned()]) {
        findings.problem(
            CHECK,
            failure.message(),
            "Move or link the library to a path without a colon or space.",
            place,
        );
        return false;
    }
    if let (Some((major, minor)), Some(here)) = (elf.glibc, our_glibc())
        && (major, minor) > here
    {
        findings.problem(
            CHECK,
            format!(
                "it needs glibc {major}.{minor}, and this machine has {}.{}",
                here.0, here.1
            ),
            "Take the packaged library, which needs less (scripts/package), or build it on a machine with this glibc.",
            place,
        );
        return false;
    }
    match loads(environment, path, limit) {
        Ok(()) => {
            findings.ok(CHECK, "the loader takes it", place);
            true
        }
        Err(why) => {
            findings.problem(
                CHECK,
                format!("it was preloaded but is not in the process: {why}"),
                reinstall,
                place,
            );
            false
        }
    }
}

/// Preloads only the library into a child process, and checks whether the child has mapped it.
fn loads(environment: &Environment, path: &Path, limit: Duration) -> Result<(), String> {
    let answer = ask(What::Maps, environment, &[path.to_owned()], limit).map_err(|error| error.to_string())?;
    let mapped = shown(path);
    if answer.lines.iter().any(|line| line.ends_with(&mapped)) {
        return Ok(());
    }
    let error_text = answer.error_text.trim();
    Err(match answer.end {
        _ if !error_text.is_empty() => error_text.lines().next().unwrap_or_default().to_owned(),
        End::TooLong => format!("the program did not start within {}", duration(limit.as_nanos() as u64)),
        End::By(status) => match status.signal() {
            Some(signal) => format!("the program died of signal {signal}"),
            None => format!("the loader left it out ({status})"),
        },
        End::Interrupted => "interrupted".into(),
    })
}
