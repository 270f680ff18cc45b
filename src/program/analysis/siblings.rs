//! The other processes of a job, by the journals beside its own.

use journal::format::EXTENSION;
use journal::reader::{Header, Journal, plain};

use super::job::Job;

/// A process has one journal, and copies of it.
const MOST_COPIES: usize = 64;

/// The process of the same job and the same host that has this pid, if its journal is in the same folder.
pub fn sibling(job: &Job, pid: u32) -> Option<Header> {
    let folder = job.path.parent()?;
    let entries = plain::named_in(folder, EXTENSION).ok()?;
    // Only these names can belong to the process, so not every journal is opened.
    let part = format!("-{pid}-");
    let journals = entries.filter(|entry| entry.file_name().to_string_lossy().contains(&part));
    let is_sibling = |header: &Header| {
        header.pid == pid
            && header.host == job.header.host
            && header.boot_id == job.header.boot_id
            && header.job == job.header.job
    };
    journals.take(MOST_COPIES).find_map(|entry| {
        let journal = Journal::open(&entry.path()).ok()?;
        is_sibling(journal.header()).then(|| journal.header().clone())
    })
}
