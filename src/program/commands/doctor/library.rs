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
        Ok(Kind::Elf(elf)) if elf.machine == OUR_MACHINE && elf.exports("vramshim_version") => elf,
        other => {
            let found = match other {
                Ok(Kind::Elf(elf)) if elf.machine == OUR_MACHINE => "it is another library".to_owned(),
                Ok(Kind::Elf(elf)) => format!("it is for {}", machine_name(elf.machine)),
                Ok(_) => "it is no library (not 64-bit ELF, or damaged)".to_owned(),
                Err(error) => format!("it cannot be read: {error}"),
            };
            findings.problem(CHECK, found, reinstall, place);
            return false;
        }
    };
    if let Err(failure) = preload(&[path.to_owned()]) {
        let advice = "Move or link the library to a path without a colon or space.";
        findings.problem(CHECK, failure.message(), advice, place);
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
    if let Some(why) = why_not_loaded(environment, path, limit) {
        let found = format!("it was preloaded but is not in the process: {why}");
        findings.problem(CHECK, found, reinstall, place);
        return false;
    }
    findings.ok(CHECK, "the loader takes it", place);
    true
}

/// Preloads only the library into a child process, and checks whether the child has mapped it.
fn why_not_loaded(environment: &Environment, path: &Path, limit: Duration) -> Option<String> {
    let answer = match ask(What::Maps, environment, &[path.to_owned()], limit) {
        Ok(answer) => answer,
        Err(error) => return Some(error.to_string()),
    };
    let mapped = shown(path);
    if answer.lines.iter().any(|line| line.ends_with(&mapped)) {
        return None;
    }
    if let Some(line) = answer.error_text.trim().lines().next() {
        return Some(line.to_owned());
    }
    Some(match answer.end {
        End::TooLong => format!("the program did not start within {}", duration(limit.as_nanos() as u64)),
        End::By(status) => match status.signal() {
            Some(signal) => format!("the program died of signal {signal}"),
            None => format!("the loader left it out ({status})"),
        },
        End::Interrupted => "interrupted".into(),
    })
}
