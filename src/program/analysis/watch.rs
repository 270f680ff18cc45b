//! Follows the journal of one running process: the figures as last read, and what happened last.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::api::ApiCode;
use base::cuda::HOST_DEVICE;
use base::shortage::{Refusal, Verdict};
use journal::format::{Event, MarkKind, Record};
use journal::reader::{Device, Header, Journal, OpenError, Problem, State, Tail, Texts};

use super::figures::Figures;
use super::held::{Caches, Held};
use super::job;
use super::running;
use super::scene::{Scene, Scenes};

pub struct Watched {
    /// The process id in this program's pid namespace.
    pub pid: u32,
    /// The journal's file, beside which the others lie.
    pub path: PathBuf,
    pub figures: Figures,
    journal: Journal,
    caches: Caches,
    tail: Tail,
    buffer: Vec<u8>,
    /// The whole journal was read once, so that the figures are complete.
    pub is_read: bool,
    ended: Option<Instant>,
    /// The oldest first.
    happened: VecDeque<Happening>,
    /// What happened until then has been taken.
    taken_until_ns: Option<u64>,
    texts: Texts,
}

/// The most of what happened that waits to be taken; the oldest marks are dropped, and then the oldest failures.
const HAPPENINGS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// Nanoseconds after 1970.
    pub at_ns: u64,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Failed(Failed),
    Mark {
        /// The number of the text in the file of stacks.
        number: u64,
        /// `None` until the file of stacks has it.
        text: Option<String>,
        kind: MarkKind,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub device: i16,
    pub api: ApiCode,
    pub requested: u64,
    pub result: i32,
    pub over_limit: bool,
    /// Who refused the request besides the library; `None` if that is not known.
    pub refusal: Option<Refusal>,
    /// The layer's file, if a layer refused it and the header names it.
    pub file: Option<String>,
}

impl Happening {
    pub fn is_mark(&self) -> bool {
        matches!(self.what, What::Mark { .. })
    }
}

/// Drops the oldest marks, and then the oldest of what is left, until at most so many are there: a failure is told however
/// many marks follow it.
pub fn keep<T>(oldest_first: &mut VecDeque<T>, most: usize, is_mark: impl Fn(&T) -> bool) {
    let mut over = oldest_first.len().saturating_sub(most);
    oldest_first.retain(|one| {
        let goes = over > 0 && is_mark(one);
        over -= usize::from(goes);
        !goes
    });
    oldest_first.drain(..over);
}

impl What {
    /// `scenes` are those of the job, with this record.
    fn from_record(record: &Record, scenes: &Scenes) -> Option<What> {
        match record.event {
            Event::AllocFailed {
                requested,
                result,
                over_limit,
                ..
            } => Some(What::Failed(Failed {
                device: record.device,
                api: record.api,
                requested,
                result,
                over_limit,
                refusal: scenes
                    .last()
                    .filter(|scene| scene.time_ns == record.time_ns && scene.device == record.device)
                    .and_then(Scene::refusal),
                file: None,
            })),
            Event::Mark { text, kind } => Some(What::Mark {
                number: text,
                text: None,
                kind,
            }),
            _ => None,
        }
    }
}

impl Watched {
    /// `pid` is the process id in this program's pid namespace; `None` takes the id from the journal's header.
    pub fn open(path: &Path, pid: Option<u32>) -> Result<Watched, OpenError> {
        let journal = Journal::open(path)?;
        // `path` can be that of a descriptor.
        let path = running::path_of(path);
        Ok(Watched {
            pid: pid.unwrap_or(journal.header().pid),
            texts: Texts::beside(&path),
            path,
            journal,
            figures: Figures::default(),
            caches: Caches::default(),
            tail: Tail::default(),
            buffer: Vec::new(),
            is_read: false,
            ended: None,
            happened: VecDeque::new(),
            taken_until_ns: None,
        })
    }

    /// Continues to read, at most one portion of a long journal. Returns true if the present end has been reached.
    pub fn follow(&mut self) -> Result<bool, OpenError> {
        let mut done = self.look()?;
        if done && self.state() != State::Running {
            // The process may have written more between the last read and its end.
            done = self.look()?;
        }
        if done {
            let (serves, state) = (self.figures.serves_tensors, self.state());
            self.caches = Caches::read(&self.path, self.header(), state, serves, false);
            self.is_read = true;
        }
        Ok(done)
    }

    fn look(&mut self) -> Result<bool, OpenError> {
        self.journal.refresh()?;
        // The slots of several threads are not in the order of time, and what failed is told by what was measured before.
        let mut records: Vec<Record> = Vec::new();
        let mut each = |record| records.push(record);
        let reading = self.tail.read(&self.journal, &mut self.buffer, &mut each);
        let reading = reading.map_err(|error| self.journal.error(Problem::Io(error)))?;
        records.sort_by_key(|record| (record.time_ns, record.slot));
        for record in &records {
            self.figures.apply(record, |_| Verdict::NoneFailed);
            if let Some(what) = What::from_record(record, &self.figures.scenes)
                && self.taken_until_ns.is_none_or(|until| record.time_ns > until)
            {
                self.happened.push_back(Happening {
                    at_ns: record.time_ns,
                    what,
                });
                keep(&mut self.happened, HAPPENINGS, |one| one.is_mark());
            }
        }
        Ok(!reading.behind)
    }

    pub fn header(&self) -> &Header {
        self.journal.header()
    }

    pub fn title(&self) -> String {
        job::title(self.header())
    }

    pub fn lost(&self) -> u64 {
        self.journal.lost()
    }

    /// The devices of the header and those that were used, in order of numbers.
    pub fn devices(&self) -> Vec<(i16, Option<&Device>)> {
        let used = self.figures.devices.keys().copied();
        let numbers: BTreeSet<i16> = self.header().ordinals().chain(used).collect();
        let of_gpus = numbers.into_iter().filter(|&number| number != HOST_DEVICE);
        of_gpus.map(|number| (number, self.header().device(number))).collect()
    }

    pub fn held(&self, device: i16) -> Held {
        self.caches.held_of(device, &self.figures).without(self.lost())
    }

    /// What happened since the last call, the oldest first. The first call gives the latest of what happened before.
    pub fn take_happenings(&mut self) -> Vec<Happening> {
        if !self.is_read {
            return Vec::new();
        }
        let start_ns = self.header().wall_start_ns;
        let texts = &mut self.texts;
        let mut taken: Vec<Happening> = self.happened.drain(..).collect();
        self.taken_until_ns = taken.iter().map(|one| one.at_ns).max().max(self.taken_until_ns);
        for one in &mut taken {
            one.at_ns = start_ns.saturating_add(one.at_ns);
            match &mut one.what {
                What::Mark { number, text, .. } => *text = texts.get(*number).map(str::to_owned),
                What::Failed(failed) => {
                    let named = failed
                        .refusal
                        .and_then(|refusal| self.journal.header().file_of(refusal.by));
                    failed.file = named.map(str::to_owned);
                }
            }
        }
        taken
    }

    pub fn state(&self) -> State {
        self.journal.state()
    }

    /// Bytes of the journal that were read, and its size.
    pub fn progress(&self) -> (u64, u64) {
        let position = self.tail.position();
        (position, self.journal.size().max(position))
    }

    /// The time since a call of this function first found the process ended; `None` if the process runs.
    pub fn ended_for(&mut self, now: Instant) -> Option<Duration> {
        (self.state() != State::Running).then(|| now - *self.ended.get_or_insert(now))
    }
}
