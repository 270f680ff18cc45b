//! Checks whether journals can be written: makes a file in their folder as the library makes a journal.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use base::filesystem::{Kind, Storage, kind_of};
use base::text::shown;
use config::{Config, DefaultFolder, default_folder};

use super::report::Findings;
use crate::render::format::size;

const CHECK: &str = "journal";
/// The size of a new journal in bytes.
const FIRST_STEP_BYTES: usize = 1 << 20;

pub fn check(findings: &mut Findings, config: &Config) {
    if config.journal_max == 0 {
        findings.note(
            CHECK,
            "no journals are kept",
            "VRAMSHIM_JOURNAL_MAX=0 turns them off.",
            "VRAMSHIM_JOURNAL_MAX",
        );
        return;
    }
    let wanted = config.directory.clone().unwrap_or_else(|| {
        let DefaultFolder { path, avoids } = default_folder("JOB");
        if let Some(avoided) = avoids {
            findings.note(
                CHECK,
                format!("the working folder is on {avoided}, so journals are kept on this machine"),
                "They are lost with its temporary files. VRAMSHIM_DIR (vramshim run --dir) names another folder.",
                shown(&path),
            );
        }
        path
    });
    let wanted = std::path::absolute(&wanted).unwrap_or(wanted);
    let place = shown(&wanted);
    let advice = "Choose another folder with VRAMSHIM_DIR (vramshim run --dir); the job would run without a journal.";
    let Some((existing, trial)) = try_nearest(findings, CHECK, &wanted, &place, advice) else {
        return;
    };
    let kind = kind_of(existing);
    let on = kind.map_or_else(String::new, |kind| format!(" on {}", kind.name));
    if let Some(error) = &trial.no_blocks {
        findings.note(
            CHECK,
            format!("blocks cannot be allocated in advance{on} ({error}); the library writes zeros instead"),
            "Journals grow a little slower there; a local disk is better.",
            &place,
        );
    }
    if let Some(error) = &trial.no_locks {
        findings.note(
                CHECK,
                format!("record locks do not work{on} ({error})"),
                "inspect then uses the process id to tell a running job from a killed one, which works on the same machine only.", &place);
    }
    if let Some(Kind {
        name,
        storage: Storage::Remote,
    }) = kind
    {
        findings.warning(
            CHECK,
            format!("journals would lie on {name}"),
            "The job waits for the server whenever a journal grows. If the server cannot write, SIGBUS can end the \
                 job. Choose a folder on this machine with VRAMSHIM_DIR (vramshim run --dir).",
            &place,
        );
    }
    if kind.is_some_and(|kind| kind.storage == Storage::Memory) {
        findings.note(
            CHECK,
            "journals would lie in memory",
            "They are lost at a reboot, and they count towards a container's memory limit.",
            &place,
        );
    }
    room(findings, existing, config.journal_max, &place);
    let made = if wanted.exists() {
        "journals can be written"
    } else {
        "the folder can be made, and journals written"
    };
    findings.ok(CHECK, made, place);
}

pub struct Trial {
    no_blocks: Option<io::Error>,
    pub no_locks: Option<io::Error>,
}

/// Tests the folder `wanted` or, if it does not exist, the nearest existing folder above it. Returns the tested folder
/// with the result. If files cannot be made there, adds a problem and returns `None`.
pub fn try_nearest<'a>(
    findings: &mut Findings,
    check: &'static str,
    wanted: &'a Path,
    place: &str,
    advice: &str,
) -> Option<(&'a Path, Trial)> {
    let existing = wanted.ancestors().find(|path| path.exists())?;
    let problem = match existing.is_dir() {
        false => format!("{} is not a folder", shown(existing)),
        true => match try_out(existing) {
            Ok(trial) => return Some((existing, trial)),
            Err((doing, error)) => format!("cannot {doing} in {}: {error}", shown(existing)),
        },
    };
    findings.problem(check, problem, advice, place);
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
    let last = || io::Error::last_os_error();
    // SAFETY: the call takes numbers only, and the descriptor is open.
    let blocks = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, FIRST_STEP_BYTES as libc::off_t) };
    let no_blocks = (blocks != 0).then(last);
    if let Some(error) = no_blocks {
        let known = matches!(
            error.raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
        );
        if !known {
            return Err(("get room for a file", error));
        }
        file.set_len(FIRST_STEP_BYTES as u64)
            .map_err(|error| ("write", error))?;
        return Ok(Trial {
            no_blocks: Some(error),
            no_locks: lock(&file),
        });
    }
    map(&file).map_err(|error| ("map a file for writing", error))?;
    Ok(Trial {
        no_blocks: None,
        no_locks: lock(&file),
    })
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

fn room(findings: &mut Findings, folder: &Path, most: u64, place: &str) {
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
    let advice = "Make room, choose another folder (VRAMSHIM_DIR), or set VRAMSHIM_JOURNAL_MAX lower. Without room the job \
                  goes on, and events are counted as lost.";
    let found = format!("{} are free, and a journal may grow to {}", size(free), size(most));
    if free < 64 << 20 {
        findings.warning(CHECK, found, advice, place);
    } else if free < most {
        findings.note(CHECK, found, advice, place);
    }
}
