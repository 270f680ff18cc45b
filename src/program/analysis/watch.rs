//! Follows the journal of one running process: the ledger as last read, and the rates of calls between two updates.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use journal::reader::{Follower, Journal, OpenError, State};

use super::job::Job;
use super::ledger::Ledger;

pub struct Watched {
    /// The process id in this program's pid namespace.
    pub pid: u32,
    pub job: Job,
    follower: Follower,
    /// `None` until the journal has been read to its end for the first time, and again after a restart of the reading.
    caught_up: Option<CaughtUp>,
    ended: Option<Instant>,
    /// The counters of each device at the last call of `count`.
    counters: BTreeMap<i16, Counters>,
    counted_at: Option<Instant>,
    pub rates: BTreeMap<i16, Rates>,
}

/// The reader's counts when the journal had first been read to its end.
struct CaughtUp {
    /// The number of events that had come out of order.
    late: u64,
    anomalies: u64,
}

#[derive(Clone, Copy, Default)]
struct Counters {
    allocations: u64,
    frees: u64,
    bytes: u64,
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub allocations: f64,
    pub frees: f64,
    /// Requested bytes.
    pub bytes: f64,
}

impl Watched {
    /// `pid` is the process id in this program's pid namespace; `None` takes the id from the journal's header.
    pub fn open(journal: &Path, pid: Option<u32>) -> Result<Watched, OpenError> {
        let journal = Journal::open(journal)?;
        let mut job = Job::of(&journal, Ledger::default(), 0);
        // If `journal` is the path of a descriptor, the job shows the path of the file.
        job.path = std::fs::read_link(&job.path).unwrap_or(job.path);
        Ok(Watched {
            pid: pid.unwrap_or(job.header.pid),
            job,
            follower: Follower::new(journal),
            caught_up: None,
            ended: None,
            counters: BTreeMap::new(),
            counted_at: None,
            rates: BTreeMap::new(),
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
            self.counted_at = None;
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
        for event in self.follower.by_ref() {
            self.job.ledger.apply(&event);
        }
        self.job.unfinished = self.follower.unfinished();
        self.job.refresh(self.follower.journal());
    }

    /// Whether events were applied in a wrong order: since the end was first reached, events came out of order and new
    /// anomalies appeared.
    fn has_misread(&self) -> bool {
        self.caught_up
            .as_ref()
            .is_some_and(|then| self.follower.late() > then.late && self.job.ledger.anomalies.total() > then.anomalies)
    }

    /// Computes `rates` for the time since the last call of `count`.
    pub fn count(&mut self, now: Instant) {
        if !self.is_read() {
            return;
        }
        let counters: BTreeMap<i16, Counters> = (self.job.ledger.devices.iter())
            .map(|(&device, ledger)| {
                let all = &ledger.all;
                let counters = Counters {
                    allocations: all.count,
                    frees: all.count - all.live.min(all.count),
                    bytes: all.bytes,
                };
                (device, counters)
            })
            .collect();
        let before = std::mem::replace(&mut self.counters, counters);
        let since = self.counted_at.replace(now).map(|then| now - then);
        self.rates = match since {
            Some(since) if !since.is_zero() => (self.counters.iter())
                .map(|(device, now)| {
                    (
                        *device,
                        rates(before.get(device).copied().unwrap_or_default(), *now, since),
                    )
                })
                .collect(),
            _ => BTreeMap::new(),
        };
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

fn rates(before: Counters, now: Counters, since: Duration) -> Rates {
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / since.as_secs_f64();
    Rates {
        allocations: rate(before.allocations, now.allocations),
        frees: rate(before.frees, now.frees),
        bytes: rate(before.bytes, now.bytes),
    }
}
