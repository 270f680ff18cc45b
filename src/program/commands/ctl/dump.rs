//! Copies the journal of a running job.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use base::text::shown;
use journal::copy::{self, InFile};
use journal::format::EXTENSION;
use journal::reader::{CacheSums, Journal, Stacks, TensorFile, plain};
use serde_json::{Value, json};

use super::ask;
use super::connection::JournalOf;
use crate::failure::Failure;

/// How long a dump waits for a snapshot of PyTorch's tensors, in microseconds.
const LONGEST_WAIT_US: u64 = 2_000_000;

/// Asks the job where its journal is and what time it is there, and copies the journal to `to`. Without `force` only an
/// earlier copy is replaced.
pub fn dump(pid: u32, to: &Path, force: bool) -> Result<Value, Failure> {
    if to.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(Failure::refused(format!(
            "{}: the name of a journal ends in .{EXTENSION}",
            shown(to)
        )));
    }
    let (path, _) = journal_of(pid)?;
    let found = JournalOf::of(pid, &path)?;
    let from = &found.path;
    let unread = |error: io::Error| Failure::failed(format!("{}: cannot be read: {error}", shown(&path)));
    let source = plain::open(&found.file.path()).and_then(|file| file.ok_or(io::ErrorKind::NotFound.into()));
    let source = InFile(source.map_err(unread)?);
    if copy::would_replace(&source, from, to).map_err(unread)? {
        return Err(Failure::refused(format!(
            "{}: the job writes its own journal there, or a file beside it; give another name",
            shown(to)
        )));
    }
    if !force && let Some(other) = other(to) {
        return Err(Failure::refused(format!(
            "{}: exists already and is no copy by dump: give another name, or --force",
            shown(&other)
        )));
    }
    let torch = snapshot(&TensorFile::beside(from));
    ask(pid, "mark")?;
    let (_, now_ns) = journal_of(pid)?;
    let dumped = copy::dump(&source, from, to, now_ns).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Failure::failed(format!(
            "{}: the journal is of another version than this program's",
            shown(&path)
        )),
        _ => Failure::failed(format!("{}: cannot be written: {error}", shown(to))),
    })?;
    Ok(json!({"file": to.to_string_lossy(), "records": dumped.records, "bytes": dumped.bytes, "pytorch": torch}))
}

/// Waits until PyTorch's tensors are told up to now, which happens about once a second. Says how old they are if that takes
/// too long; `None` if they are of now, or if there are none.
fn snapshot(tensors: &Path) -> Option<String> {
    let now_us = || UNIX_EPOCH.elapsed().unwrap_or_default().as_micros() as u64;
    let asked_us = now_us();
    let mut told = CacheSums::last(tensors).ok()??;
    while told.until_us < asked_us {
        if now_us() - asked_us > LONGEST_WAIT_US {
            let seconds = (now_us() - told.until_us) as f64 / 1e6;
            return Some(format!(
                "no new snapshot of PyTorch's tensors was had; the last one is {seconds:.1} s old"
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
        told = CacheSums::last(tensors).ok()??;
    }
    None
}

/// What a dump to `to` would replace, if that is not an earlier dump: the file itself, or one beside it.
fn other(to: &Path) -> Option<PathBuf> {
    if Journal::open(to).is_ok_and(|journal| journal.header().is_dump) {
        return None;
    }
    let names = [to.to_owned(), Stacks::path(to), TensorFile::beside(to)];
    let has_bytes = |path: &PathBuf| path.metadata().is_ok_and(|found| found.len() > 0);
    names.into_iter().find(has_bytes)
}

/// Where the job's journal is, and how many nanoseconds have passed since the job created it.
pub(super) fn journal_of(pid: u32) -> Result<(PathBuf, u64), Failure> {
    let answer = ask(pid, "journal")?;
    match (answer["journal"].as_str(), answer["now_ns"].as_u64()) {
        (Some(path), Some(now_ns)) => Ok((path.into(), now_ns)),
        _ => Err(Failure::failed(format!(
            "process {pid} does not say where its journal is"
        ))),
    }
}
