//! Checks whether journals can be written: makes a file in their folder as the library makes a journal.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use base::filesystem::{Storage, kind_of};
use base::text::shown;
use config::{DefaultFolder, default_folder};

use super::Setup;
use super::report::{Findings, Severity};
use crate::render::format::size;

/// The size of a new journal in bytes.
const FIRST_STEP_BYTES: usize = 1 << 20;

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
    let advice = "Choose another folder with VRAMSHIM_DIR (vramshim run --dir); the job would run without a journal.";
    let Some((existing, trial)) = try_nearest(told, &wanted, advice) else {
        return;
    };
    let kind = kind_of(existing);
    let on = kind.map_or_else(String::new, |kind| format!(" on {}", kind.name));
    if let Some(error) = &trial.no_blocks {
        told.note(format!(
            "blocks cannot be allocated in advance{on} ({error}); the library writes zeros instead"
        ))
        .advise("Journals grow a little slower there; a local disk is better.");
    }
    if let Some(error) = &trial.no_locks {
        told.note(format!("record locks do not work{on} ({error})")).advise(
            "inspect then uses the process id to tell a running job from a killed one, which works on the same \
             machine only.",
        );
    }
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

pub struct Trial {
    no_blocks: Option<io::Error>,
    pub no_locks: Option<io::Error>,
}

/// Tests the folder `wanted` or, if it does not exist, the nearest existing folder above it. Returns the tested folder
/// with the result. If files cannot be made there, adds a problem and returns `None`.
pub fn try_nearest<'a>(told: &mut Findings, wanted: &'a Path, advice: &str) -> Option<(&'a Path, Trial)> {
    let existing = wanted.ancestors().find(|path| path.exists())?;
    let problem = match try_out(existing) {
        _ if !existing.is_dir() => format!("{} is not a folder", shown(existing)),
        Ok(trial) => return Some((existing, trial)),
        Err((doing, error)) => format!("cannot {doing} in {}: {error}", shown(existing)),
    };
    told.problem(problem).advise(advice);
    None
}

/// Makes a temporary folder with a file, allocates the file's blocks, maps and locks the file. If the filesystem
/// allocates no blocks, the file is not mapped.
fn try_out(folder: &Path) -> Result<Trial, (&'static str, io::Error)> {
    let inside = tempfile::Builder::new().prefix(".vramshim-doctor-").tempdir_in(folder);
    let inside = inside.map_err(|error| ("make a folder", error))?;
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(inside.path().join("trial"))
        .map_err(|error| ("create a file", error))?;
    // SAFETY: the call takes numbers only, and the descriptor is open.
    let blocks = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, FIRST_STEP_BYTES as libc::off_t) };
    let no_blocks = (blocks != 0).then(io::Error::last_os_error);
    match no_blocks.as_ref().map(io::Error::raw_os_error) {
        None => map(&file).map_err(|error| ("map a file for writing", error))?,
        Some(Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => {
            let written = file.set_len(FIRST_STEP_BYTES as u64);
            written.map_err(|error| ("write", error))?;
        }
        Some(_) => {
            return Err((
                "get room for a file",
                no_blocks.unwrap_or_else(io::Error::last_os_error),
            ));
        }
    }
    let no_locks = lock(&file);
    Ok(Trial { no_blocks, no_locks })
}

fn lock(file: &File) -> Option<io::Error> {
    // SAFETY: flock is plain data, for which zero bytes are valid.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: `whole` outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &whole) };
    (result != 0).then(io::Error::last_os_error)
}

fn map(file: &File) -> io::Result<()> {
    // SAFETY: the mapping is new and no longer than the file; it is written within its bounds and unmapped once.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(
            ptr::null_mut(),
            FIRST_STEP_BYTES,
            rights,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        mapped.cast::<u8>().write_volatile(1);
        libc::munmap(mapped, FIRST_STEP_BYTES);
    }
    Ok(())
}

fn room(told: &mut Findings, folder: &Path, most: u64) {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: statvfs is plain data, and the call writes it.
    let free = unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(path.as_ptr(), &mut about) != 0 {
            return;
        }
        (about.f_bavail as u64).saturating_mul(about.f_frsize as u64)
    };
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
