//! Copies of a journal, made by `cp`, `vramshim ctl PID dump` or `vramshim_dump`. A process counts once, so of several
//! journals of one process a command reads the one that tells the most.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base::text::shown;
use journal::reader::{Header, Journal, Stacks, State};

use crate::analysis::job::is_imported;

/// Takes copies out of `journals`, and returns a message for each. Journals that cannot be opened stay.
pub fn leave_out(journals: &mut BTreeSet<PathBuf>) -> Vec<String> {
    let mut notes = Vec::new();
    if journals.len() < 2 {
        return notes;
    }
    let mut processes: BTreeMap<_, Vec<(Standing, PathBuf)>> = BTreeMap::new();
    for path in journals.iter() {
        // Imported logs may have no times, so two of them can seem to be of one process.
        if let Ok(journal) = Journal::open(path)
            && !is_imported(journal.header())
        {
            let known = processes.entry(process_of(journal.header())).or_default();
            known.push((Standing::of_journal(&journal), path.clone()));
        }
    }
    for mut copies in processes.into_values() {
        // Of equal copies the first by name stays.
        copies.sort_by(|(one, path), (other, of)| (Reverse(one), path).cmp(&(Reverse(other), of)));
        for (_, path) in &copies[1..] {
            journals.remove(path);
            notes.extend(told(path, &copies[0].1));
        }
    }
    notes
}

/// What to say of a journal that is left out; `None` if it is the same file by another path.
fn told(path: &Path, other: &Path) -> Option<String> {
    let whole = |path: &Path| path.canonicalize().ok();
    let is_other = whole(path).is_none() || whole(path) != whole(other);
    is_other.then(|| {
        format!(
            "{}: left out: it is a journal of the same process as {}",
            shown(path),
            shown(other)
        )
    })
}

/// What identifies the process that wrote a journal. A container may have its own process ids.
fn process_of(header: &Header) -> impl Ord + use<> {
    let (host, job) = (header.host.clone(), header.job.clone());
    let started = (header.start_ticks, header.wall_start_ns);
    (host, header.boot_id, header.pid, started, job)
}

/// How much a journal tells of its process; the greater, the more. The fields are compared in their order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    is_running: bool,
    /// Neither a copy that the library made while the process ran, nor cut short.
    is_whole: bool,
    records: u64,
    knows_end: bool,
    last_sign_ns: u64,
    has_stacks: bool,
    /// Whether the file has the name that the library gave it.
    is_named: bool,
}

impl Standing {
    fn of_journal(journal: &Journal) -> Standing {
        let (header, path) = (journal.header(), journal.path());
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Standing {
            is_running: journal.state() == State::Running,
            is_whole: journal.state() != State::Dumped && journal.cut_off() == 0,
            records: journal.claimed(),
            knows_end: journal.ended_ns().is_some(),
            last_sign_ns: journal.ended_ns().unwrap_or_else(|| journal.alive_ns()),
            has_stacks: Stacks::path(path).exists(),
            is_named: stem.contains(&format!("-{}-{}", header.pid, header.start_ticks)),
        }
    }
}
