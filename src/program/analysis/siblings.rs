//! The other processes of a machine, by the journals beside that of a job.

use journal::format::EXTENSION;
use journal::reader::{Header, Journal, plain};

use super::job::Job;

/// A process has one journal, and copies of it.
const MOST_COPIES: usize = 64;

/// The process of the same host that has this pid, if its journal is in the same folder.
pub fn neighbour(job: &Job, pid: u32) -> Option<Job> {
    let folder = job.path.parent()?;
    let entries = plain::named_in(folder, EXTENSION).ok()?;
    // Only these names can belong to the process, so not every journal is opened.
    let part = format!("-{pid}-");
    let journals = entries.filter(|entry| entry.file_name().to_string_lossy().contains(&part));
    let is_it =
        |header: &Header| header.pid == pid && header.host == job.header.host && header.boot_id == job.header.boot_id;
    journals.take(MOST_COPIES).find_map(|entry| {
        let journal = Journal::open(&entry.path()).ok()?;
        let is_it = is_it(journal.header());
        is_it.then(|| Job::load_with(&journal, false, &mut [], |_, _| {}).ok())?
    })
}
