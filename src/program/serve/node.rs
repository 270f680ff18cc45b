//! The processes of a node: finds journals in folders, reads what is new in each, and forgets processes that ended.
//!
//! Files are opened for a reading and closed again, so the number of descriptors does not grow with the processes. A
//! journal that cannot be read costs a message and a count, and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::identity;
use base::text::{many, printable, shown};
use journal::reader::{Journal, OpenError, Problem, State};

use super::accounts::Accounts;
use super::counted::{Before, Ended, Totals};
use super::devices::Devices;
use super::folders::{File, Folders, Who, in_turns};
use super::followed_process::{Identity, Labels, Process, identity};
use crate::analysis::held::now_ns;
use crate::say::say;

/// A journal that is not ready is opened again at every so many collections, at first more often.
const MOST_SKIPPED: u64 = 64;
/// The most processes with series of their own, one that uses several devices counted for each; the others count for the node
/// alone. Prometheus keeps each series for weeks.
const MOST_SHOWN: usize = 1000;
/// The most processes that are followed, counted the same way: their figures take memory.
const MOST_FOLLOWED: usize = 4096;
/// The most processes that are remembered after that.
const MOST_COUNTED: usize = 1 << 16;
/// So many new ones may come before it is looked how many there are.
const MOST_UNCOUNTED: usize = 1024;
const MOST_MESSAGES: u64 = 200;
/// The longest message, in characters.
const LONGEST_MESSAGE: usize = 400;

pub struct Options {
    /// Gives the folders, at each collection: new ones may have come.
    pub folders: Box<dyn Fn() -> Vec<PathBuf> + Send + Sync>,
    /// Whether the folders in them count, too.
    pub with_inner: bool,
    /// How long the series of an ended process stay.
    pub keep: Duration,
    /// The totals of the node count what happened since, in nanoseconds after 1970.
    pub since_ns: u64,
    pub accounts: Vec<PathBuf>,
    /// How long one collection may read; `None`: until all journals are read.
    pub budget: Option<Duration>,
}

pub enum Known {
    /// Not opened yet, or its process had not written the header at the last of so many looks.
    New(u64),
    Followed(Box<Process>),
    /// Not read any more: the process ended long ago, or on another machine or before the machine started, or the file
    /// cannot be read.
    PassedOver,
}

/// The journal is opened again much later.
const LATER: Known = Known::New(MOST_SKIPPED + 1);

impl Default for Known {
    fn default() -> Known {
        Known::New(0)
    }
}

impl Known {
    fn process(&self) -> Option<&Process> {
        match self {
            Known::Followed(process) => Some(process),
            Known::New(_) | Known::PassedOver => None,
        }
    }
}

pub struct Node {
    options: Options,
    pub folders: Folders<Known>,
    /// Those of the processes that are followed.
    identities: BTreeSet<Identity>,
    /// What `totals` has of processes that are not followed any more.
    counted: BTreeMap<Identity, Before>,
    pub totals: Totals,
    /// How many journals were damaged, and how many messages about journals were given.
    pub damaged: u64,
    messages: u64,
    pub accounts: Accounts,
    pub devices: Devices,
    /// The journals that could not be read at the last try.
    pub unreadable: BTreeSet<PathBuf>,
    collections: u64,
    buffer: Vec<u8>,
    /// When the journals were read last.
    collected: Option<Instant>,
}

impl Node {
    pub fn new(options: Options) -> Node {
        Node {
            accounts: Accounts::new(options.accounts.clone()),
            options,
            folders: Folders::new(),
            identities: BTreeSet::new(),
            counted: BTreeMap::new(),
            totals: Totals::default(),
            damaged: 0,
            messages: 0,
            devices: Devices::default(),
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
        self.folders.files().filter_map(|(_, file)| file.known.process())
    }

    /// Reads what is new, unless that was done within this time.
    pub fn collect_anew(&mut self, fresh: Duration) {
        if self.collected.is_none_or(|at| at.elapsed() >= fresh) {
            self.collect();
        }
    }

    /// Reads what is new.
    pub fn collect(&mut self) {
        // A half of the time is for the folders.
        let budget = self.options.budget;
        let half = || budget.map(|budget| Instant::now() + budget / 2);
        self.list(half());
        let until = half();
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        self.collections += 1;
        // The journals take turns, so that a long one does not hold up the others.
        let (mut behind, mut counted) = (VecDeque::from(self.turns()), self.identities.len());
        while let Some(path) = behind.pop_front()
            && !is_late()
        {
            if self.look(&path) {
                behind.push_back(path);
            }
            if self.identities.len() > counted + MOST_UNCOUNTED {
                self.choose();
                counted = self.identities.len();
            }
        }
        self.forget();
        self.choose();
        self.accounts.collect();
        let mut devices = std::mem::take(&mut self.devices);
        devices.collect(self.processes());
        self.devices = devices;
        self.collected = Some(Instant::now());
        self.buffer.shrink_to(1 << 20);
    }

    /// The journals, in the order in which they are read: of each owner in each folder the one that waits longest, then the
    /// next of each. So a collection that is too short does not leave out the same again, nor those of an owner of few.
    fn turns(&self) -> Vec<PathBuf> {
        let mut waiting: Vec<(PathBuf, &File<Known>)> = self.folders.files().collect();
        waiting.sort_by_key(|(_, file)| file.looked);
        in_turns(waiting.into_iter().map(|(path, file)| (&file.who, path)))
    }

    /// Finds the journals in the folders, and forgets those that vanished.
    fn list(&mut self, until: Option<Instant>) {
        let (named, with_inner) = ((self.options.folders)(), self.options.with_inner);
        let is_followed = |known: &Known| known.process().is_some();
        let listed = self.folders.list(&named, with_inner, until, is_followed);
        listed.problems.iter().for_each(|problem| self.tell(problem));
        for (path, file) in listed.gone {
            self.unreadable.remove(&path);
            self.leave(file.known);
        }
    }

    /// Reads a portion of one journal. Returns whether there is more to read.
    fn look(&mut self, path: &Path) -> bool {
        let Some(file) = self.folders.file(path) else {
            return false;
        };
        file.looked = self.collections;
        match &mut file.known {
            Known::PassedOver => return false,
            Known::Followed(process) if process.is_done => return false,
            Known::Followed(_) => {}
            Known::New(looks) => {
                let before = std::mem::replace(looks, *looks + 1);
                if before > 0 && !before.is_power_of_two() && !before.is_multiple_of(MOST_SKIPPED) {
                    return false;
                }
            }
        }
        // Whatever goes wrong from here on, the journal is not read again.
        let known = std::mem::replace(&mut file.known, Known::PassedOver);
        let who = file.who.clone();
        let (after, behind) = match Journal::open(path) {
            Ok(journal) => self.follow(path, &journal, known, who),
            Err(error) => (self.unread(path, &error, known), false),
        };
        if let Some(file) = self.folders.file(path) {
            file.known = after;
        }
        behind
    }

    /// What becomes of a journal that cannot be opened.
    fn unread(&mut self, path: &Path, error: &OpenError, known: Known) -> Known {
        match (&error.problem, known) {
            // The process is starting, or what has the name is no journal yet.
            (Problem::NotReady | Problem::NotAFile, Known::New(looks)) => Known::New(looks),
            // It vanished since the folder was listed.
            (Problem::Io(problem), known) if problem.kind() == io::ErrorKind::NotFound => {
                self.leave(known);
                Known::New(0)
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

    fn follow(&mut self, path: &Path, journal: &Journal, known: Known, who: Who) -> (Known, bool) {
        self.unreadable.remove(path);
        let mut process = match known {
            Known::Followed(process) if process.is_of(journal) => process,
            // A copy, or the same file under the name that it had before.
            Known::New(looks) if self.identities.contains(&identity(who.1, journal.header())) => {
                return (Known::New(looks), false);
            }
            other => {
                self.leave(other);
                match self.begin(path, journal, who) {
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
        self.totals.lost = self.totals.lost.saturating_add(process.lost - lost_before);
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

    /// Begins to follow the process of a journal; `None` if that is not a process of this node, or ended long ago, or was
    /// counted: a process counts once.
    fn begin(&mut self, path: &Path, journal: &Journal, who: Who) -> Option<Box<Process>> {
        let header = journal.header();
        let identity = identity(who.1, header);
        if journal.state() == State::Dumped {
            return None;
        }
        let before = self.counted.get(&identity).copied();
        if before.is_some_and(|before| before.has_ended) {
            return None;
        }
        let is_running = journal.state() == State::Running;
        let of_this_boot = header.boot_id == [0; 16] || header.boot_id == identity::boot_id();
        if !is_running && (!of_this_boot || self.is_old(journal)) {
            return None;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut process = Box::new(Process::new(journal, &name, who));
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
        for file in self.folders.files_mut() {
            let leaves = file.known.process().and_then(|process| process.leaves);
            if leaves.is_some_and(|leaves| now >= leaves) {
                left.push(std::mem::replace(&mut file.known, Known::PassedOver));
            }
        }
        left.into_iter().for_each(|known| self.leave(known));
    }

    fn leave(&mut self, known: Known) {
        if let Known::Followed(process) = known {
            self.identities.remove(&process.identity);
            let before = Before {
                until_ns: process.counted_until_ns,
                lost: process.lost,
                has_ended: process.is_done,
            };
            self.counted.insert(process.identity, before);
            if self.counted.len() > MOST_COUNTED {
                self.counted.pop_first();
            }
        }
    }

    /// Chooses which processes are followed further, and which have series of their own: in turns of the owners, of each first
    /// those that have them. No series changes its name.
    fn choose(&mut self) {
        let with_series = self.followed().filter(|process| process.is_shown);
        let mut taken: BTreeSet<Labels> = with_series.map(|process| process.labels.clone()).collect();
        let files = self.folders.files_mut().filter(|file| file.known.process().is_some());
        let mut files: Vec<&mut File<Known>> = files.collect();
        files.sort_by_key(|file| file.known.process().is_none_or(|process| !process.is_shown));
        let (mut places, mut left) = (0, Vec::new());
        for file in in_turns(files.into_iter().map(|file| (file.who.clone(), file))) {
            let Known::Followed(process) = &mut file.known else {
                continue;
            };
            places += process.places();
            let had_series = std::mem::replace(&mut process.is_shown, process.is_read && places <= MOST_SHOWN);
            if process.is_shown && !had_series {
                process.distinguish(&taken);
                taken.insert(process.labels.clone());
            }
            if places > MOST_FOLLOWED {
                // What has ended is counted for the node all the same.
                let after = if process.is_done { Known::PassedOver } else { LATER };
                left.push(std::mem::replace(&mut file.known, after));
            }
        }
        left.into_iter().for_each(|known| self.leave(known));
    }

    fn unreadable(&mut self, path: &Path, problem: &str) {
        if self.unreadable.insert(path.to_owned()) {
            self.tell(problem);
        }
    }

    fn damaged(&mut self, problem: &str) {
        self.damaged += 1;
        self.tell(problem);
    }

    fn tell(&mut self, message: &str) {
        self.messages += 1;
        match self.messages {
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
