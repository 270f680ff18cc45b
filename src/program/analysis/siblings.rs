//! The other processes of a job, by the journals beside its own.

use journal::format::EXTENSION;
use journal::reader::{Header, Journal};

use super::job::Job;

/// The process of the same job and the same host that has this pid, if its journal is in the same folder.
pub fn sibling(job: &Job, pid: u32) -> Option<Header> {
    let folder = job.path.parent()?;
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    // Only these names can belong to the process, so not every journal is opened.
    let part = format!("-{pid}-");
    let mut journals = entries.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(&part) && path.extension().is_some_and(|extension| extension == EXTENSION)
    });
    let is_sibling = |header: &Header| {
        header.pid == pid
            && header.host == job.header.host
            && header.boot_id == job.header.boot_id
            && header.job == job.header.job
    };
    journals.find_map(|path| {
        let journal = Journal::open(&path).ok()?;
        is_sibling(journal.header()).then(|| journal.header().clone())
    })
}
