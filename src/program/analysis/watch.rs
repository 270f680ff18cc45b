//! Follows the journal of one running process: the ledger as last read, and what happened last.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use base::api::ApiCode;
use base::shortage::Refusal;
use journal::format::{Event, MarkKind, Record};
use journal::reader::{Follower, Journal, OpenError, State, Texts};

use super::job::Job;
use super::ledger::Ledger;
use super::running;
use super::scene::{Scene, Scenes};

pub struct Watched {
    /// The process id in this program's pid namespace.
    pub pid: u32,
    pub job: Job,
    follower: Follower,
    /// `None` until the journal has been read to its end for the first time, and again after a restart of the reading.
    caught_up: Option<CaughtUp>,
    ended: Option<Instant>,
    happened: VecDeque<Happening>,
    /// What happened until then has been taken.
    taken_until_ns: Option<u64>,
    texts: Texts,
}

/// The most of what happened that waits to be taken; the oldest are dropped.
const HAPPENINGS: usize = 64;

/// A failure for the job, or a mark.
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

/// The reader's counts when the journal had first been read to its end.
struct CaughtUp {
    /// The number of events that had come out of order.
    late: u64,
    anomalies: u64,
}

impl Watched {
    /// `pid` is the process id in this program's pid namespace; `None` takes the id from the journal's header.
    pub fn open(journal: &Path, pid: Option<u32>) -> Result<Watched, OpenError> {
        let journal = Journal::open(journal)?;
        let mut job = Job::of(&journal, Ledger::default(), 0);
        // `journal` can be the path of a descriptor.
        job.path = running::path_of(&job.path);
        let texts = Texts::beside(&job.path);
        Ok(Watched {
            pid: pid.unwrap_or(job.header.pid),
            job,
            follower: Follower::new(journal),
            caught_up: None,
            ended: None,
            happened: VecDeque::new(),
            taken_until_ns: None,
            texts,
        })
    }

    /// Continues to read, at most one portion of a long journal. Returns true if the present end has been reached.
    pub fn follow(&mut self) -> Result<bool, OpenError> {
        let mut done = self.follower.follow()?;
        if done && self.state() != State::Running {
            // The process may have written more between the last read and its end.
            done = self.follower.follow()?;
            if done {
                self.follower.finish();
            }
        }
        self.apply();
        if done && self.has_misread() {
            self.follower.restart();
            self.job.ledger = Ledger::default();
            self.caught_up = None;
            self.happened.clear();
            return Ok(false);
        }
        if done && self.caught_up.is_none() {
            self.caught_up = Some(CaughtUp {
                late: self.follower.late(),
                // Records that are still being written may be the cause of anomalies.
                anomalies: match self.follower.unfinished() {
                    0 => self.job.ledger.anomalies.total(),
                    _ => 0,
                },
            });
        }
        Ok(done)
    }

    /// Ends the reading. Records that are still being written then count as unfinished.
    pub fn finish(&mut self) {
        self.follower.finish();
        self.apply();
    }

    fn apply(&mut self) {
        for record in self.follower.by_ref() {
            self.job.ledger.apply(&record);
            if let Some(what) = What::from_record(&record, &self.job.ledger.scenes)
                && self.taken_until_ns.is_none_or(|until| record.time_ns > until)
            {
                self.happened.truncate(HAPPENINGS - 1);
                self.happened.push_front(Happening {
                    at_ns: record.time_ns,
                    what,
                });
            }
        }
        self.job.unfinished = self.follower.unfinished();
        self.job.damaged = self.follower.damaged();
        self.job.refresh(self.follower.journal());
    }

    /// Whether events were applied in a wrong order: since the end was first reached, events came out of order and new
    /// anomalies appeared.
    fn has_misread(&self) -> bool {
        self.caught_up
            .as_ref()
            .is_some_and(|then| self.follower.late() > then.late && self.job.ledger.anomalies.total() > then.anomalies)
    }

    /// What happened since the last call, the oldest first. The first call gives the latest of what happened before.
    pub fn take_happenings(&mut self) -> Vec<Happening> {
        if !self.is_read() {
            return Vec::new();
        }
        let start_ns = self.job.header.wall_start_ns;
        let texts = &mut self.texts;
        let mut taken: Vec<Happening> = self.happened.drain(..).rev().collect();
        self.taken_until_ns = taken.iter().map(|one| one.at_ns).max().max(self.taken_until_ns);
        for one in &mut taken {
            one.at_ns = start_ns.saturating_add(one.at_ns);
            match &mut one.what {
                What::Mark { number, text, .. } => *text = texts.get(*number).map(str::to_owned),
                What::Failed(failed) => {
                    let named = failed.refusal.and_then(|refusal| self.job.header.file_of(refusal.by));
                    failed.file = named.map(str::to_owned);
                }
            }
        }
        taken
    }

    pub fn state(&self) -> State {
        self.follower.journal().state()
    }

    /// Whether the whole journal has been read, so that the ledger is complete.
    pub fn is_read(&self) -> bool {
        self.caught_up.is_some()
    }

    /// Bytes of the journal that were read, and its size.
    pub fn progress(&self) -> (u64, u64) {
        self.follower.progress()
    }

    /// The time since a call of this function first found the process ended; `None` if the process runs.
    pub fn ended_for(&mut self, now: Instant) -> Option<Duration> {
        (self.state() != State::Running).then(|| now - *self.ended.get_or_insert(now))
    }
}
