//! Running processes that keep a journal: who has one open.

use std::path::PathBuf;

use vramshim::journal::format::EXTENSION;
use vramshim::journal::reader::Journal;

pub struct Running {
    /// As this program sees it.
    pub pid: u32,
    pub journal: PathBuf,
}

/// Every process that can be looked into.
pub fn all() -> Vec<Running> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<Running> = pids
        .filter_map(|pid| {
            Some(Running {
                pid,
                journal: of(pid).ok()?,
            })
        })
        .collect();
    found.sort_by_key(|running| running.pid);
    found
}

/// The journal of one process.
pub fn of(pid: u32) -> Result<PathBuf, String> {
    let folder = format!("/proc/{pid}/fd");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!(
                "process {pid}: there is none; give the id of a running process"
            ));
        }
        Err(error) => return Err(format!("process {pid}: {folder} cannot be read: {error}")),
    };
    let number = innermost(pid).unwrap_or(pid);
    let mut links = entries
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links
        .find(|path| {
            path.extension().is_some_and(|extension| extension == EXTENSION)
                // A forked child has its parent's open.
                && Journal::open(path).is_ok_and(|journal| journal.header().pid == number)
        })
        .ok_or_else(|| {
            format!("process {pid}: keeps no journal; it runs without the library, or has not used CUDA yet")
        })
}

/// The id that the process has in its own namespace.
fn innermost(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}
