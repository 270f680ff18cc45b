//! Checks whether journals can be written in their folder, and how much room they have.

use std::path::Path;

use base::filesystem::{Storage, kind_of};
use base::text::shown;
use config::{DefaultFolder, default_folder};

use super::Setup;
use super::report::{Findings, Severity};
use crate::launch::folder::unusable;
use crate::render::format::size;

pub fn check(told: &mut Findings, setup: &mut Setup) {
    if setup.config.journal_max == 0 {
        told.note("no journals are kept")
            .advise("VRAMSHIM_JOURNAL_MAX=0 turns them off.")
            .at("VRAMSHIM_JOURNAL_MAX");
        return;
    }
    let wanted = setup.config.directory.clone().unwrap_or_else(|| {
        let DefaultFolder { path, avoids } = default_folder("JOB");
        if let Some(avoided) = avoids {
            told.note(format!(
                "the working folder is on {avoided}, so journals are kept on this machine"
            ))
            .advise("They are lost with its temporary files. VRAMSHIM_DIR (vramshim run --dir) names another folder.")
            .at(shown(&path));
        }
        path
    });
    let wanted = std::path::absolute(&wanted).unwrap_or(wanted);
    told.look_at(shown(&wanted));
    let Some(existing) = usable(
        told,
        &wanted,
        "Choose another folder with VRAMSHIM_DIR (vramshim run --dir); the job would run without a journal.",
    ) else {
        return;
    };
    let kind = kind_of(existing);
    let on = kind.map_or_else(String::new, |kind| format!(" on {}", kind.name));
    match kind.map(|kind| kind.storage) {
        Some(Storage::Remote) => {
            told.warning(format!("journals would lie{on}")).advise(
                "The job waits for the server whenever a journal grows. If the server cannot write, SIGBUS can end the \
                 job. Choose a folder on this machine with VRAMSHIM_DIR (vramshim run --dir).",
            );
        }
        Some(Storage::Memory) => {
            told.note("journals would lie in memory")
                .advise("They are lost at a reboot, and they count towards a container's memory limit.");
        }
        _ => {}
    }
    room(told, existing, setup.config.journal_max);
    told.ok(if wanted.exists() {
        "journals can be written"
    } else {
        "the folder can be made, and journals written"
    });
}

/// The folder `wanted` or, if it does not exist, the nearest existing folder above it. If files cannot be made there, adds a
/// problem and returns `None`.
pub fn usable<'a>(told: &mut Findings, wanted: &'a Path, advice: &str) -> Option<&'a Path> {
    if let Some(problem) = unusable(wanted) {
        told.problem(problem).advise(advice);
        return None;
    }
    wanted.ancestors().find(|path| path.exists())
}

fn room(told: &mut Findings, folder: &Path, most: u64) {
    let Ok(about) = rustix::fs::statvfs(folder) else { return };
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    if free >= most.max(64 << 20) {
        return;
    }
    let severity = if free < 64 << 20 {
        Severity::Warning
    } else {
        Severity::Note
    };
    let found = format!("{} are free, and a journal may grow to {}", size(free), size(most));
    told.tell(severity, found).advise(
        "Make room, choose another folder (VRAMSHIM_DIR), or set VRAMSHIM_JOURNAL_MAX lower. Without room the job goes \
         on, and events are counted as lost.",
    );
}
