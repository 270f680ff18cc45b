//! One running process, read along with: its account as of the last look, and how fast it has moved since the one before.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use journal::reader::{Follower, Journal, OpenError, State};

use super::job::Job;
use super::ledger::Ledger;

pub struct Watched {
    /// The process id as it is known here.
    pub pid: u32,
    pub job: Job,
    follower: Follower,
    /// None while the journal is read for the first time, or once more.
    caught_up: Option<CaughtUp>,
    ended: Option<Instant>,
    /// At the last refresh, by device.
    counters: BTreeMap<i16, Counters>,
    counted_at: Option<Instant>,
    pub rates: BTreeMap<i16, Rates>,
}

/// How the reading stood when the journal had been read to its end.
struct CaughtUp {
    /// Events that came out of order, and what could not be, by then.
    late: u64,
    anomalies: u64,
}

#[derive(Clone, Copy, Default)]
struct Counters {
    allocations: u64,
    frees: u64,
    bytes: u64,
}

/// For each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub allocations: f64,
    pub frees: f64,
    /// Asked for.
    pub bytes: f64,
}

impl Watched {
    /// `pid`: the process as it is known here; without, as it knows itself.
    pub fn open(journal: &Path, pid: Option<u32>) -> Result<Watched, OpenError> {
        let journal = Journal::open(journal)?;
        let mut job = Job::of(&journal, Ledger::default(), 0);
        // Where the file lies, if it was reached through a descriptor.
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

    /// Reads on, one portion of a long journal at most. True when there is no more for now.
    pub fn follow(&mut self) -> Result<bool, OpenError> {
        let mut done = self.follower.follow()?;
        if done && self.state() != State::Running {
            // It may have written on between the look and its end.
            done = self.follower.follow()?;
            if done {
                self.follower.finish();
            }
        }
        self.apply();
        if done && self.is_confused() {
            self.follower.restart();
            self.job.ledger = Ledger::default();
            self.caught_up = None;
            self.counted_at = None;
            return Ok(false);
        }
        if done && self.caught_up.is_none() {
            self.caught_up = Some(CaughtUp {
                late: self.follower.late(),
                // With something under way, they may come from that.
                anomalies: match self.follower.unfinished() {
                    0 => self.job.ledger.anomalies.total(),
                    _ => 0,
                },
            });
        }
        Ok(done)
    }

    /// Takes what is under way for unfinished: nobody will look again.
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

    /// Something came so late that what had come before it was misunderstood.
    fn is_confused(&self) -> bool {
        self.caught_up
            .as_ref()
            .is_some_and(|then| self.follower.late() > then.late && self.job.ledger.anomalies.total() > then.anomalies)
    }

    /// Takes the rates since the last call.
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

    /// Whether the account is whole.
    pub fn is_read(&self) -> bool {
        self.caught_up.is_some()
    }

    /// Bytes of the journal read, of how many.
    pub fn progress(&self) -> (u64, u64) {
        self.follower.progress()
    }

    /// How long ago the end of the process was seen.
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
