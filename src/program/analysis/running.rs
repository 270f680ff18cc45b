//! Finds the processes of this machine that write a journal now. A process keeps its journal open, so /proc shows the
//! file.
//!
//! The journal is opened through the descriptor (`/proc/PID/fd/N`), which works across mount namespaces, and even if
//! the file has been removed. A forked child inherits its parent's descriptor but does not write to that journal. The
//! journal's header names the writer by its start time and by its process id in its own pid namespace.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::identity;
use journal::format::EXTENSION;
use journal::reader::Journal;

/// A running process that writes a journal, and the path through which the journal can be opened.
pub struct Running {
    pub pid: u32,
    pub journal: PathBuf,
}

/// Device and inode, which identify a file.
pub type FileId = (u64, u64);

/// Identifies the file at `path`; `None` if no regular file is there.
pub fn file_id(path: &Path) -> Option<FileId> {
    let metadata = fs::metadata(path).ok()?;
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

/// All processes that write a journal now, as far as this user may read their descriptors. A journal that a forked child
/// inherited is listed only under the process that writes it.
pub fn all() -> Vec<Running> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut listed = HashSet::new();
    let mut running = Vec::new();
    for pid in pids {
        for (journal, id) in open_journals(pid).unwrap_or_default() {
            if !listed.contains(&id) && writes(pid, &journal) {
                listed.insert(id);
                running.push(Running { pid, journal });
            }
        }
    }
    running
}

/// The path of the file that a journal's path leads to, beside which its other files are. A process in another mount
/// namespace has them below its own root.
pub fn path_of(journal: &Path) -> PathBuf {
    let target = fs::read_link(journal).unwrap_or_default();
    let process = journal.parent().and_then(Path::parent).unwrap_or(journal);
    let below_root = process.join("root").join(target.strip_prefix("/").unwrap_or(&target));
    let is_it = |path: &PathBuf| file_id(path).is_some_and(|id| file_id(journal) == Some(id));
    [target, below_root]
        .into_iter()
        .find(is_it)
        .unwrap_or_else(|| journal.to_owned())
}

/// Why a process writes no journal, and what to do, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoJournal(String);

/// The journal that process `pid` itself writes.
pub fn journal_of(pid: u32) -> Result<PathBuf, NoJournal> {
    let journals = open_journals(pid).map_err(|error| {
        NoJournal(match error.kind() {
            io::ErrorKind::NotFound => format!("process {pid}: there is no such process on this machine"),
            io::ErrorKind::PermissionDenied => format!(
                "process {pid}: may not be examined by this user; run vramshim as the user of the process or as root"
            ),
            _ => format!("process {pid}: cannot be examined: {error}"),
        })
    })?;
    let has_inherited = !journals.is_empty();
    let own = journals.into_iter().find(|(journal, _)| writes(pid, journal));
    own.map(|(journal, _)| journal).ok_or_else(|| {
        let why = if !is_under_the_library(pid) {
            "it does not run under the library: start it with `vramshim run`"
        } else if has_inherited {
            "it only inherited its parent's journal and has not used CUDA itself yet"
        } else {
            "it has not used CUDA yet, or VRAMSHIM_JOURNAL_MAX=0 turned its journal off"
        };
        NoJournal(format!("process {pid} writes no journal: {why}"))
    })
}

/// The journals that a process has open, each with the path of its descriptor (`/proc/PID/fd/N`).
fn open_journals(pid: u32) -> io::Result<Vec<(PathBuf, FileId)>> {
    let mut found = Vec::new();
    for descriptor in fs::read_dir(identity::folder_of(pid).join("fd"))?.flatten() {
        let path = descriptor.path();
        // The process may close a descriptor, or reuse its number, at any moment.
        let Ok(target) = fs::read_link(&path) else { continue };
        if is_journal(target.as_os_str().as_bytes())
            && let Some(id) = file_id(&path)
        {
            found.push((path, id));
        }
    }
    Ok(found)
}

/// Whether the target of a descriptor's link is a journal. The kernel appends ` (deleted)` to the name of a removed
/// file.
fn is_journal(target: &[u8]) -> bool {
    let name = target.strip_suffix(b" (deleted)").unwrap_or(target);
    let stem = name.strip_suffix(EXTENSION.as_bytes());
    stem.is_some_and(|stem| stem.ends_with(b"."))
}

/// Whether the journal's header names this process as the writer.
fn writes(pid: u32, journal: &Path) -> bool {
    let Ok(journal) = Journal::open(journal) else {
        return false;
    };
    let header = journal.header();
    Some(header.pid) == pid_of_its_own(pid) && Some(header.start_ticks) == identity::start_ticks(&pid.to_string())
}

/// The id of the process in its own (innermost) pid namespace.
fn pid_of_its_own(pid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    innermost(&String::from_utf8_lossy(&status)).or(Some(pid))
}

fn innermost(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Whether the process has mapped a file named libvramshim.so.
pub fn is_under_the_library(pid: u32) -> bool {
    fs::read(identity::folder_of(pid).join("maps")).is_ok_and(|maps| {
        let name = b"/libvramshim.so";
        maps.windows(name.len()).any(|window| window == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_known_by_their_names() {
        assert!(is_journal(b"/srv/a b/node-1-2.vraj"));
        assert!(is_journal(b"/srv/node-1-2.vraj (deleted)"));
        assert!(!is_journal(b"/srv/vraj"));
        assert!(!is_journal(b"/srv/node.vraj.gz"));
        assert!(!is_journal(b"socket:[1234]"));
    }

    #[test]
    fn a_process_knows_the_last_of_its_numbers() {
        assert_eq!(innermost("Name:\ta\nNSpid:\t4711\t42\t7\nFoo:\t1\n"), Some(7));
        assert_eq!(innermost("NSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost("Name:\tNSpid\n"), None);
    }
}
