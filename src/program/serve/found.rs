//! The journals in the folders, by the names that lead to their pages.
//!
//! A name is looked up in the list of what was found, and never becomes a part of a path.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use journal::reader::{Header, Journal, State};
use sha2::{Digest, Sha256};

use super::node::{Node, now_ns};
use super::summary::Summary;

/// A journal that was found in the folders.
pub struct Found {
    pub name: String,
    pub path: PathBuf,
    /// What the metrics know of the process; `None` if they do not follow it.
    pub summary: Option<Summary>,
}

/// The journals, each by a name that can stand in an address: the name of its file, or a digest of its path if another
/// file has the same name. So a name never leads to another file than before.
pub fn found(node: &Node) -> Vec<Found> {
    let mut count: BTreeMap<&OsStr, u64> = BTreeMap::new();
    for (path, _) in node.found() {
        *count.entry(path.file_stem().unwrap_or_default()).or_default() += 1;
    }
    let found = node.found().map(|(path, process)| {
        let stem = path.file_stem().unwrap_or_default();
        let plain = stem
            .to_str()
            .filter(|stem| count[OsStr::new(stem)] == 1 && is_plain(stem));
        Found {
            name: plain.map_or_else(|| digest_name(path.as_os_str().as_encoded_bytes()), str::to_owned),
            path: path.to_owned(),
            summary: process.map(Summary::of),
        }
    });
    found.collect()
}

/// The name of a job's page: the name of the job, or a digest of it if that cannot stand in an address.
pub fn job_name(header: &Header) -> String {
    match is_plain(&header.job) {
        true => header.job.clone(),
        false => digest_name(header.job.as_bytes()),
    }
}

fn is_plain(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && !name.starts_with('.') && name.len() <= 200 && name.bytes().all(fits)
}

/// A name that no other name is taken for: `is_plain` has no tilde.
fn digest_name(of: &[u8]) -> String {
    let digits: String = Sha256::digest(of)
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("~{digits}")
}

/// What the head of a journal says. The file is closed again, so a page of many needs few descriptors.
pub struct Head {
    pub header: Header,
    pub state: State,
    /// When the process began, and when it was last known to run, in nanoseconds after 1970.
    pub span: (u64, u64),
}

impl Head {
    fn read(path: &Path) -> Option<Head> {
        let journal = Journal::open(path).ok()?;
        let began_ns = journal.header().wall_start_ns;
        let last_ns = match journal.state() {
            State::Running => now_ns(),
            _ => began_ns.saturating_add(journal.ended_ns().unwrap_or_else(|| journal.alive_ns())),
        };
        Some(Head {
            header: journal.header().clone(),
            state: journal.state(),
            span: (began_ns, last_ns),
        })
    }
}

/// The newest journals whose heads can be read.
pub struct Newest {
    pub read: Vec<(Found, Head)>,
    /// How many journals there are.
    pub all: usize,
    /// How many were looked at.
    pub looked_at: usize,
}

impl Newest {
    /// Reads the heads of at most `most` journals.
    pub fn of(found: Vec<Found>, most: usize) -> Newest {
        let all = found.len();
        let mut dated: Vec<(SystemTime, Found)> = (found.into_iter())
            .filter_map(|found| Some((found.path.symlink_metadata().ok()?.modified().ok()?, found)))
            .collect();
        dated.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
        dated.truncate(most);
        let looked_at = dated.len();
        let read = dated
            .into_iter()
            .filter_map(|(_, found)| Head::read(&found.path).map(|head| (found, head)));
        Newest {
            all,
            looked_at,
            read: read.collect(),
        }
    }

    /// How many there are, for a sentence.
    pub fn words(&self) -> String {
        let mut told = format!("Journals in the folders: {}", self.all);
        if self.looked_at < self.all {
            told += &format!(", of which the {} newest were looked at", self.looked_at);
        }
        match self.looked_at - self.read.len() {
            0 => told,
            unread => told + &format!("; without a head that can be read: {unread}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_stand_in_addresses() {
        assert!(is_plain("node1-4711-98765"));
        for stem in ["", "..", ".hidden", "a/b", "a%2fb", "a b", "a\"b", "~00"] {
            assert!(!is_plain(stem), "{stem}");
        }
        assert!(digest_name(Path::new("/a/b.vraj").as_os_str().as_encoded_bytes()).starts_with('~'));
    }
}
