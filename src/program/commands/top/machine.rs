//! The processes that `top` shows: finds new processes, follows their journals, and forgets processes that have ended.
//! Keeps what happened in them lately, and what NVML said last.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::text::shown;
use journal::reader::plain::journals_in;
use journal::reader::{OpenError, Problem, State};

use crate::analysis::host::{Host, HostId};
use crate::analysis::names::device_uuid;
use crate::analysis::nvml::{self, Everything};
use crate::analysis::running::{self, FileId, file_id};
use crate::analysis::watch::{Happening, Watched, keep};
use crate::failure::Failure;
use crate::render::format::printable;

/// How long a process is still shown after its end.
const SHOWN_AFTER_END: Duration = Duration::from_secs(5);
/// The search for processes takes at most 1 / SEARCH_SHARE of the time.
const SEARCH_SHARE: u32 = 20;
/// How long NVML may take. A driver that hangs holds `top` up no longer.
const FOR_NVML: Duration = Duration::from_secs(10);
/// The most events that are kept.
const EVENTS: usize = 1000;

pub struct Event {
    pub pid: u32,
    pub job: String,
    pub happening: Happening,
}

pub struct Asked {
    /// The name of a simulated GPU (`Host::name`).
    pub simulator: Option<String>,
    pub devices: Everything,
}

/// The hosts to ask about, each with the UUIDs that its processes use: NVML finds MIG instances by these alone.
type Questions = BTreeMap<HostId, (Host, BTreeSet<String>)>;
type Answers = BTreeMap<HostId, Asked>;

fn ask(questions: &Questions) -> Answers {
    let answer = |(id, (host, uuids)): (&HostId, &(Host, BTreeSet<String>))| {
        let uuids: Vec<String> = uuids.iter().cloned().collect();
        let asked = Asked {
            simulator: host.name(),
            devices: nvml::ask(host, &uuids, FOR_NVML),
        };
        (id.clone(), asked)
    };
    questions.iter().map(answer).collect()
}

#[derive(Default)]
pub struct Machine {
    /// The processes and paths that the arguments name; all processes if both are empty.
    pids: Vec<u32>,
    paths: Vec<PathBuf>,
    watched: BTreeMap<FileId, (Watched, Host)>,
    /// The processes that wrote a journal at the last search, shown or not.
    under_the_library: HashSet<u32>,
    events: VecDeque<Event>,
    /// A thread that asks NVML, which can take long.
    asking: Option<JoinHandle<Answers>>,
    asked: Answers,
    /// Journals that are not read again, because their process has ended or reading failed.
    passed_over: HashSet<(PathBuf, FileId)>,
    problems: BTreeSet<String>,
    search_again: Option<Instant>,
}

impl Machine {
    /// Fails if a process in `only` writes no journal, or if a path in `only` cannot be read.
    pub fn new(only: &[OsString]) -> Result<Machine, Failure> {
        let mut machine = Machine::default();
        let mut missing = Vec::new();
        for text in only {
            let path = Path::new(text);
            if let Some(pid) = text.to_str().and_then(|text| text.parse().ok()) {
                missing.extend(running::journal_of(pid).err().map(|why| why.to_string()));
                machine.pids.push(pid);
            } else if let Err(error) = std::fs::metadata(path) {
                missing.push(format!("{}: cannot be read: {error}", shown(path)));
            } else {
                if path.is_dir() {
                    missing.extend(journals_in(path).err().map(|error| format!("{}: {error}", shown(path))));
                } else if let Err(error) = Watched::open(path, None)
                    && !matches!(error.problem, Problem::NotReady)
                {
                    missing.push(error.to_string());
                }
                machine.paths.push(path.to_owned());
            }
        }
        if missing.is_empty() {
            return Ok(machine);
        }
        Err(Failure::failed(missing.join("\n")))
    }

    pub fn is_restricted(&self) -> bool {
        !self.pids.is_empty() || !self.paths.is_empty()
    }

    pub fn nothing_to_show(&self) -> String {
        let whose = if self.is_restricted() {
            "of those asked for "
        } else {
            ""
        };
        format!(
            "No process {whose}writes a journal now. `vramshim run` starts a process under the library; `vramshim top` sees \
             it from its first use of CUDA. `vramshim inspect` shows processes that have ended."
        )
    }

    /// Messages about journals that could not be read, each once.
    pub fn take_problems(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.problems)
    }

    /// The same, and the next call gives them again.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(String::as_str)
    }

    pub fn processes(&self) -> impl Iterator<Item = (FileId, &Watched)> {
        self.watched.iter().map(|(id, (watched, _))| (*id, watched))
    }

    /// The latest events, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// Takes the events, so that the next call gives those that follow.
    pub fn take_events(&mut self) -> VecDeque<Event> {
        std::mem::take(&mut self.events)
    }

    pub fn host(&self, id: FileId) -> &Host {
        self.watched.get(&id).map_or(&Host::Machine, |(_, host)| host)
    }

    /// What NVML said of each host whose devices are shown.
    pub fn asked(&self) -> impl Iterator<Item = (&HostId, &Asked)> {
        self.asked.iter()
    }

    /// Whether a process writes a journal, as far as the last search found.
    pub fn is_under_the_library(&self, pid: u32) -> bool {
        self.under_the_library.contains(&pid)
    }

    /// Bytes read of all journals, and their total size.
    pub fn progress(&self) -> (u64, u64) {
        let both = self.watched.values().map(|(watched, _)| watched.progress());
        both.fold((0, 0), |(done, all), (more, of)| (done + more, all + of))
    }

    /// Searches for processes, unless the last search was too recent (`SEARCH_SHARE`).
    pub fn discover(&mut self) {
        let begin = Instant::now();
        if self.search_again.is_some_and(|again| begin < again) {
            return;
        }
        let running = running::all();
        self.under_the_library = running.iter().map(|one| one.pid).collect();
        let pid_of: BTreeMap<FileId, (u32, &Path)> = (running.iter())
            .filter_map(|one| Some((file_id(&one.journal)?, (one.pid, one.journal.as_path()))))
            .collect();
        if !self.is_restricted() {
            for (&id, &(pid, path)) in &pid_of {
                self.watch(id, path, Some(pid));
            }
        }
        for pid in self.pids.clone() {
            if let Some((&id, &(_, path))) = pid_of.iter().find(|(_, (one, _))| *one == pid) {
                self.watch(id, path, Some(pid));
            }
        }
        for path in self.named_journals() {
            if let Some(id) = file_id(&path) {
                self.watch(id, &path, pid_of.get(&id).map(|(pid, _)| *pid));
            }
        }
        self.search_again = Some(Instant::now() + begin.elapsed() * SEARCH_SHARE);
    }

    fn named_journals(&self) -> Vec<PathBuf> {
        let journals = |path: &PathBuf| match path.is_dir() {
            true => journals_in(path).unwrap_or_default(),
            false => vec![path.clone()],
        };
        self.paths.iter().flat_map(journals).collect()
    }

    fn watch(&mut self, id: FileId, path: &Path, pid: Option<u32>) {
        let name = (path.to_owned(), id);
        if self.watched.contains_key(&id) || self.passed_over.contains(&name) {
            return;
        }
        match Watched::open(path, pid) {
            Ok(watched) if watched.state() == State::Running => {
                // A process that cannot be found, in a container for example, is taken for one on this machine's GPUs.
                let host = pid.map_or(Host::Machine, Host::of);
                self.watched.insert(id, (watched, host));
            }
            Ok(_) => drop(self.passed_over.insert(name)),
            // The process is starting, or it has ended already.
            Err(OpenError {
                problem: Problem::NotReady | Problem::NotAFile,
                ..
            }) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                self.problems.insert(printable(&error.to_string(), 400));
                self.passed_over.insert(name);
            }
        }
    }

    /// Continues to read every journal, for about `time`. Returns true if the present ends of all journals have been
    /// reached.
    pub fn follow(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut behind: Vec<FileId> = self.watched.keys().copied().collect();
        // The journals take turns, so that a long one does not hold up the others.
        while !behind.is_empty() {
            behind.retain(|&id| self.follow_one(id));
            if Instant::now() > end {
                break;
            }
        }
        behind.is_empty()
    }

    /// Reads a portion of one journal. Returns whether there is more to read.
    fn follow_one(&mut self, id: FileId) -> bool {
        let Some((watched, _)) = self.watched.get_mut(&id) else {
            return false;
        };
        match watched.follow() {
            Ok(done) => !done,
            Err(error) => {
                self.problems.insert(printable(&error.to_string(), 400));
                self.passed_over.insert((watched.path.clone(), id));
                self.watched.remove(&id);
                false
            }
        }
    }

    /// Removes processes that have ended.
    pub fn finish(&mut self) {
        self.watched.retain(|_, (watched, _)| watched.state() == State::Running);
        self.note_events();
    }

    /// Forgets processes that ended a while ago.
    pub fn refresh(&mut self) {
        let now = Instant::now();
        self.note_events();
        self.watched
            .retain(|_, (watched, _)| watched.ended_for(now).is_none_or(|since| since < SHOWN_AFTER_END));
    }

    fn note_events(&mut self) {
        let mut new = Vec::new();
        for (watched, _) in self.watched.values_mut() {
            let (pid, job) = (watched.pid, watched.title());
            let happened = watched.take_happenings().into_iter();
            new.extend(happened.map(|happening| Event {
                pid,
                job: job.clone(),
                happening,
            }));
        }
        new.sort_by_key(|event| event.happening.at_ns);
        self.events.extend(new);
        keep(&mut self.events, EVENTS, |event| event.happening.is_mark());
    }

    /// The hosts whose devices are shown: this machine, unless the arguments name processes, and the hosts of all shown
    /// processes.
    fn questions(&self) -> Questions {
        let mut questions = Questions::new();
        if !self.is_restricted() {
            questions.insert(HostId::Machine, (Host::Machine, BTreeSet::new()));
        }
        for (watched, host) in self.watched.values() {
            let (_, uuids) = questions
                .entry(host.id())
                .or_insert_with(|| (host.clone(), BTreeSet::new()));
            let devices = watched.header().devices.iter();
            uuids.extend(devices.filter_map(|device| device_uuid(&device.uuid)));
        }
        questions
    }

    /// Asks NVML about all hosts, and waits for the answers.
    pub fn ask(&mut self) {
        self.asked = ask(&self.questions());
    }

    /// Takes the answers if they have come, and asks again. Waits for nothing.
    pub fn ask_meanwhile(&mut self) {
        if self.asking.as_ref().is_some_and(|asking| !asking.is_finished()) {
            return;
        }
        if let Some(Ok(asked)) = self.asking.take().map(JoinHandle::join) {
            self.asked = asked;
        }
        let questions = self.questions();
        self.asking = Some(thread::spawn(move || ask(&questions)));
    }
}

/// Whether the process ended after it was found and before its journal was opened.
fn is_gone(error: &OpenError) -> bool {
    let Problem::Io(error) = &error.problem else {
        return false;
    };
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}
