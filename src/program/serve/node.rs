//! The processes of a node: finds journals in folders, reads what is new in each, and forgets processes that ended.
//!
//! Files are opened for a reading and closed again, so the number of descriptors does not grow with the processes. A
//! journal that cannot be read costs a message and a count, and nothing else.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::identity;
use base::text::{many, printable, shown};
use journal::reader::{Journal, OpenError, Problem, State};

use super::accounts::Accounts;
use super::counted::{Counted, Ended, Totals};
use super::devices::Devices;
use super::folders::{Found, Owners, Signs, found, journals_in, shares};
use super::followed_process::{Identity, Labels, Process, identity};
use crate::say::say;

/// A journal that is not ready is opened again at every so many collections, or sooner if its file changes.
const MOST_SKIPPED: u64 = 64;
/// The most processes with series of their own; the others count for the node alone. Prometheus keeps each series for
/// weeks.
const MOST_SHOWN: usize = 1000;
/// The most messages about journals.
const MOST_MESSAGES: u64 = 200;
/// The longest message, in characters.
const LONGEST_MESSAGE: usize = 400;

pub struct Options {
    /// Gives the folders, at each collection: new ones may have come.
    pub folders: Box<dyn Fn() -> Vec<PathBuf> + Send + Sync>,
    /// How long the series of an ended process stay.
    pub keep: Duration,
    /// The totals of the node count what happened since, in nanoseconds after 1970.
    pub since_ns: u64,
    /// Folders of accounts.
    pub accounts: Vec<PathBuf>,
    /// How long one collection may read; `None`: until all journals are read.
    pub budget: Option<Duration>,
}

/// What this program did itself.
#[derive(Default)]
pub struct Own {
    pub damaged: u64,
    pub folders_failed: u64,
    /// Journals that are not looked at, because their owner has more in the folder than the share. There may be more.
    pub left_out: u64,
    messages: u64,
}

enum Known {
    /// Not opened yet, or its process had not written the header at the last of so many looks. The file had these signs.
    New {
        looks: u64,
        was: Signs,
    },
    Followed(Box<Process>),
    /// Not read any more: the process ended long ago, or on another machine or before the machine started, or the file
    /// cannot be read.
    PassedOver,
}

const NEW: Known = Known::New {
    looks: 0,
    was: (0, 0, 0),
};

struct Entry {
    inode: u64,
    owner: u32,
    /// The number of the collection that looked at it last.
    looked: u64,
    known: Known,
}

pub struct Node {
    options: Options,
    entries: BTreeMap<PathBuf, Entry>,
    /// Those of the processes that are followed.
    identities: BTreeSet<Identity>,
    /// What `totals` has of processes that are not followed any more.
    counted: Counted,
    pub totals: Totals,
    pub own: Own,
    pub accounts: Accounts,
    pub devices: Devices,
    told_folders: BTreeSet<PathBuf>,
    /// The journals that could not be read at the last try.
    pub unreadable: BTreeSet<PathBuf>,
    collections: u64,
    buffer: Vec<u8>,
    /// When the journals were read last.
    collected: Option<Instant>,
}

pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

impl Node {
    pub fn new(options: Options) -> Node {
        Node {
            accounts: Accounts::new(options.accounts.clone()),
            options,
            entries: BTreeMap::new(),
            identities: BTreeSet::new(),
            counted: Counted::default(),
            totals: Totals::default(),
            own: Own::default(),
            devices: Devices::default(),
            told_folders: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            collections: 0,
            buffer: Vec::new(),
            collected: None,
        }
    }

    /// The processes whose journals were read to the end at least once.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.followed().filter(|process| process.is_read)
    }

    fn followed(&self) -> impl Iterator<Item = &Process> {
        self.entries.values().filter_map(|entry| match &entry.known {
            Known::Followed(process) => Some(&**process),
            Known::New { .. } | Known::PassedOver => None,
        })
    }

    /// Reads what is new, unless that was done within this time.
    pub fn collect_anew(&mut self, fresh: Duration) {
        if self.collected.is_none_or(|at| at.elapsed() >= fresh) {
            self.collect();
        }
    }

    /// Reads what is new.
    pub fn collect(&mut self) {
        self.list();
        let until = self.options.budget.map(|budget| Instant::now() + budget);
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        self.collections += 1;
        let mut behind = self.turns();
        // The journals take turns, so that a long one does not hold up the others.
        while !behind.is_empty() && !is_late() {
            behind.retain(|path| is_late() || self.look(path));
        }
        self.forget();
        self.choose();
        self.accounts.collect();
        self.devices = Devices::ask(self.processes().flat_map(|process| &process.devices));
        self.collected = Some(Instant::now());
        self.buffer.shrink_to(1 << 20);
    }

    /// The journals, in the order in which they are read: of each owner in each folder the one that waits longest, then the
    /// next of each. So a collection that is too short does not leave out the same again, nor those of an owner of few.
    fn turns(&self) -> Vec<PathBuf> {
        let mut waiting: BTreeMap<_, Vec<(u64, &PathBuf)>> = BTreeMap::new();
        for (path, entry) in &self.entries {
            let group = waiting.entry((path.parent(), entry.owner)).or_default();
            group.push((entry.looked, path));
        }
        waiting.values_mut().for_each(|group| group.sort());
        let mut turns: Vec<_> = waiting.values().flat_map(|group| group.iter().enumerate()).collect();
        turns.sort_by_key(|(turn, _)| *turn);
        turns.into_iter().map(|(_, (_, path))| (*path).clone()).collect()
    }

    /// Finds the journals in the folders, and forgets those that vanished. A journal that has another name now is still
    /// the same, and what cannot be listed now has not vanished.
    fn list(&mut self) {
        let (mut not_listed, mut counted) = (BTreeSet::new(), BTreeMap::new());
        self.own.folders_failed = 0;
        for folder in (self.options.folders)() {
            match journals_in(&folder) {
                Ok(files) => {
                    let mut owners = Owners::new();
                    files.for_each(|file| *owners.entry(file.owner).or_default() += 1);
                    counted.insert(folder, owners);
                }
                Err(error) => {
                    self.own.folders_failed += 1;
                    let problem = format!("{}: {error}", shown(&folder));
                    // What is gone has another name now, or is unmounted. What cannot be read keeps what is known.
                    if error.kind() != io::ErrorKind::NotFound {
                        not_listed.insert(folder.clone());
                    }
                    if self.told_folders.insert(folder) {
                        self.tell(&problem);
                    }
                }
            }
        }
        let all: usize = counted.values().flat_map(Owners::values).sum();
        let shares = shares(counted).into_iter();
        let taken = shares.flat_map(|(folder, shares)| self.newest(&folder, shares));
        let found: BTreeMap<PathBuf, Found> = taken.map(|file| (file.path.clone(), file)).collect();
        self.own.left_out = all.saturating_sub(found.len()) as u64;
        let may_be_there = |path: &Path| path.parent().is_some_and(|folder| not_listed.contains(folder));
        let gone: Vec<PathBuf> = (self.entries.iter())
            .filter(|(path, entry)| match found.get(*path) {
                Some(file) => file.inode != entry.inode,
                None => !may_be_there(path),
            })
            .map(|(path, _)| path.clone())
            .collect();
        let new = found.iter().filter(|(path, _)| !self.entries.contains_key(*path));
        let mut new: BTreeMap<u64, PathBuf> = new.map(|(path, file)| (file.inode, path.clone())).collect();
        for path in gone {
            self.unreadable.remove(&path);
            let Some(entry) = self.entries.remove(&path) else {
                continue;
            };
            match (&entry.known, new.remove(&entry.inode)) {
                (Known::Followed(_), Some(renamed)) => drop(self.entries.insert(renamed, entry)),
                _ => self.leave(entry.known),
            }
        }
        for (path, Found { inode, owner, .. }) in found {
            let new = Entry {
                inode,
                owner,
                looked: 0,
                known: NEW,
            };
            self.entries.entry(path).or_insert(new).owner = owner;
        }
    }

    /// The journals of a folder within these shares: those that are followed, and the newest.
    fn newest(&self, folder: &Path, mut shares: Owners) -> Vec<Found> {
        let is_followed = |file: &Found| {
            let entry = self.entries.get(&file.path).filter(|entry| entry.inode == file.inode);
            entry.is_some_and(|entry| matches!(entry.known, Known::Followed(_)))
        };
        let known = self.entries.range(folder.to_owned()..).map(|(path, _)| path);
        let known = known.take_while(|path| path.starts_with(folder));
        let of_folder = known.filter(|path| path.parent() == Some(folder));
        let followed = of_folder.filter_map(|path| found(path.clone()).filter(is_followed));
        let others = journals_in(folder)
            .into_iter()
            .flatten()
            .filter(|file| !is_followed(file));
        let mut others: Vec<Found> = others.collect();
        others.sort_by_key(|file| Reverse(file.signs));
        let mut has_room = |file: &Found| {
            let share = shares.get_mut(&file.owner).filter(|share| **share > 0);
            share.map(|share| *share -= 1).is_some()
        };
        followed.chain(others).filter(|file| has_room(file)).collect()
    }

    /// Reads a portion of one journal. Returns whether there is more to read.
    fn look(&mut self, path: &Path) -> bool {
        let Some(entry) = self.entries.get_mut(path) else {
            return false;
        };
        entry.looked = self.collections;
        match &entry.known {
            Known::PassedOver => return false,
            Known::Followed(process) if process.is_done => return false,
            Known::Followed(_) => {}
            Known::New { looks, was } => {
                let now = found(path.to_owned()).map_or((0, 0, 0), |file| file.signs);
                let looks = if now == *was { *looks } else { 0 };
                let is_due = looks == 0 || looks.is_power_of_two() || looks.is_multiple_of(MOST_SKIPPED);
                let looks = looks + 1;
                entry.known = Known::New { looks, was: now };
                if !is_due {
                    return false;
                }
            }
        }
        // Whatever goes wrong from here on, the journal is not read again.
        let known = std::mem::replace(&mut entry.known, Known::PassedOver);
        let (after, behind) = match Journal::open(path) {
            Ok(journal) => self.follow(path, &journal, known),
            Err(error) => (self.unread(path, &error, known), false),
        };
        if let Some(entry) = self.entries.get_mut(path) {
            entry.known = after;
        }
        behind
    }

    /// What becomes of a journal that cannot be opened.
    fn unread(&mut self, path: &Path, error: &OpenError, known: Known) -> Known {
        match (&error.problem, known) {
            // The process is starting, or what has the name is no journal yet.
            (Problem::NotReady | Problem::NotAFile, Known::New { looks, was }) => Known::New { looks, was },
            // It vanished since the folder was listed.
            (Problem::Io(problem), known) if problem.kind() == io::ErrorKind::NotFound => {
                self.leave(known);
                NEW
            }
            // Its process may not have let us read it yet, or the disk answers again later.
            (Problem::Io(_), known) => {
                self.unreadable(path, &error.to_string());
                known
            }
            (_, known) => {
                self.unreadable.remove(path);
                self.leave(known);
                self.damaged(&error.to_string());
                Known::PassedOver
            }
        }
    }

    fn follow(&mut self, path: &Path, journal: &Journal, known: Known) -> (Known, bool) {
        self.unreadable.remove(path);
        let mut process = match known {
            Known::Followed(process) if process.is_of(journal) => process,
            other => {
                self.leave(other);
                match self.begin(path, journal) {
                    Some(process) => process,
                    None => return (Known::PassedOver, false),
                }
            }
        };
        let lost_before = process.lost;
        let reading = process.read(journal, &mut self.buffer, &mut self.totals.counts);
        let reading = match reading {
            Ok(reading) => reading,
            Err(error) => {
                self.leave(Known::Followed(process));
                self.damaged(&format!("{}: cannot be read: {error}", shown(path)));
                return (Known::PassedOver, false);
            }
        };
        self.totals.lost += process.lost - lost_before;
        let header = journal.header();
        let has_ended = journal.state() != State::Running && !reading.behind;
        let damaged = if has_ended { process.damaged() } else { 0 };
        if !process.told && (reading.cut || process.is_made_up() || !header.damaged.is_empty() || damaged > 0) {
            process.told = true;
            let what = match (reading.cut, process.is_made_up(), damaged) {
                (true, ..) => "was cut short while it was read".to_owned(),
                (false, true, _) => "has records that cannot be true".to_owned(),
                (false, false, 0) => format!("the header is damaged ({})", header.damaged.join(", ")),
                (false, false, damaged) => format!("left out {}", many(damaged, "damaged record")),
            };
            let problem = format!("{}: {what}; the figures of this process may be wrong", shown(path));
            self.damaged(&problem);
        }
        process.state = journal.state();
        // The journal was opened before it was read, so what the process wrote until its end was there to be read.
        if has_ended {
            process.is_done = true;
            self.ended(&mut process, journal);
        }
        (Known::Followed(process), reading.behind)
    }

    /// Begins to follow the process of a journal; `None` if that is not a process of this node, or ended long ago, or if
    /// the file is a copy: a process counts once.
    fn begin(&mut self, path: &Path, journal: &Journal) -> Option<Box<Process>> {
        let header = journal.header();
        let identity = identity(header);
        if journal.state() == State::Dumped {
            return None;
        }
        if self.identities.contains(&identity) {
            return None;
        }
        let before = self.counted.before(&identity);
        if before.is_some_and(|before| before.has_ended) {
            return None;
        }
        let is_running = journal.state() == State::Running;
        let of_this_boot = header.boot_id == [0; 16] || header.boot_id == identity::boot_id();
        if !is_running && (!of_this_boot || self.is_old(journal)) {
            return None;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut process = Box::new(Process::new(journal, &name));
        process.counts_since_ns = self.options.since_ns;
        if header.wall_start_ns < self.options.since_ns {
            // It is not known when events were lost. Those of before do not count.
            process.lost = journal.lost();
        }
        if let Some(before) = before {
            process.counted_until_ns = before.until_ns;
            process.counts_since_ns = process.counts_since_ns.max(before.until_ns.saturating_add(1));
            process.lost = process.lost.max(before.lost);
        }
        self.identities.insert(identity);
        Some(process)
    }

    /// When the process of a journal was last known to run, in nanoseconds after 1970.
    fn last_alive_ns(journal: &Journal) -> u64 {
        let after = journal.ended_ns().unwrap_or_else(|| journal.alive_ns());
        journal.header().wall_start_ns.saturating_add(after)
    }

    /// Whether the process ended before this program began, and so long ago that its series are gone.
    fn is_old(&self, journal: &Journal) -> bool {
        let last_ns = Node::last_alive_ns(journal);
        let age = Duration::from_nanos(now_ns().saturating_sub(last_ns));
        last_ns < self.options.since_ns && age > self.options.keep
    }

    /// Notes that a process has ended, and when its series leave.
    fn ended(&mut self, process: &mut Process, journal: &Journal) {
        let last_ns = Node::last_alive_ns(journal);
        // A process that was seen running has just ended. A killed one may have been idle for long before.
        let age = if process.is_seen_running {
            0
        } else {
            now_ns().saturating_sub(last_ns)
        };
        let left = self.options.keep.saturating_sub(Duration::from_nanos(age));
        process.leaves = Some(Instant::now() + left);
        if process.is_seen_running || last_ns >= self.options.since_ns {
            let how = match process.state {
                State::Exited(0) => Ended::Exited,
                State::Exited(_) => Ended::Failed,
                State::Running | State::Dumped | State::Killed => Ended::Killed,
            };
            self.totals.ended[how as usize] += 1;
        }
    }

    /// Forgets processes that ended a while ago.
    fn forget(&mut self) {
        let now = Instant::now();
        let mut left = Vec::new();
        for entry in self.entries.values_mut() {
            if let Known::Followed(process) = &entry.known
                && process.leaves.is_some_and(|leaves| now >= leaves)
            {
                left.push(std::mem::replace(&mut entry.known, Known::PassedOver));
            }
        }
        left.into_iter().for_each(|known| self.leave(known));
    }

    /// A process leaves.
    fn leave(&mut self, known: Known) {
        if let Known::Followed(process) = known {
            self.identities.remove(&process.identity);
            self.counted.note(&process);
        }
    }

    /// Chooses which of the new processes have series of their own. A choice stays, so that no series changes its name.
    fn choose(&mut self) {
        let with_series = self.followed().filter(|process| process.is_shown == Some(true));
        let mut taken: BTreeSet<Labels> = with_series.map(|process| process.labels.clone()).collect();
        for entry in self.entries.values_mut() {
            if let Known::Followed(process) = &mut entry.known
                && process.is_read
                && process.is_shown.is_none()
            {
                let is_shown = taken.len() < MOST_SHOWN;
                process.is_shown = Some(is_shown);
                if is_shown {
                    process.distinguish(&taken);
                    taken.insert(process.labels.clone());
                }
            }
        }
    }

    /// A journal that cannot be read now.
    fn unreadable(&mut self, path: &Path, problem: &str) {
        if self.unreadable.insert(path.to_owned()) {
            self.tell(problem);
        }
    }

    fn damaged(&mut self, problem: &str) {
        self.own.damaged += 1;
        self.tell(problem);
    }

    fn tell(&mut self, message: &str) {
        self.own.messages += 1;
        match self.own.messages {
            count if count < MOST_MESSAGES => say!("{}", printable(message, LONGEST_MESSAGE)),
            MOST_MESSAGES => {
                say!(
                    "more journals are damaged or cannot be read; vramshim_serve_damaged_total and vramshim_serve_unreadable count them"
                )
            }
            _ => {}
        }
    }
}
