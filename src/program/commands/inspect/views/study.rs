//! One journal as the views need it: the job, its landmarks, and what was live at its peak, failure and end.

use std::path::Path;

use base::text::shown;
use journal::reader::Journal;

use crate::analysis::device_ledger::Live;
use crate::analysis::job::{Job, LoadError, Observer};
use crate::analysis::labels::Labels;
use crate::analysis::landmarks::Landmarks;
use crate::analysis::live_set::{By, Catcher, Key, LiveSet, Moment};
use crate::analysis::stacks;
use crate::journals::with_progress;
use crate::render::format::{percent, printable};
use crate::render::rank::rank;
use journal::format::NoStack;

pub struct Study {
    pub journal: Journal,
    pub job: Job,
    pub labels: Labels,
    pub landmarks: Landmarks,
    pub peak: LiveSet,
    pub failure: Option<LiveSet>,
    pub end: LiveSet,
}

impl Study {
    /// Reads the journal once, and shows its records to `observers` too. These are made for the time that the job took.
    pub fn read(path: &Path, observers: &mut [&mut dyn Observer]) -> Result<Study, LoadError> {
        let journal = Journal::open(path).map_err(LoadError::Open)?;
        let stacks = stacks::load(path).unwrap_or_else(|error| {
            eprintln!("vramshim: the stacks beside {} cannot be read: {error}", shown(path));
            None
        });
        let mut landmarks = Landmarks::new(time_taken_ns(&journal));
        let mut catcher = Catcher::new(&[Moment::Peak, Moment::OutOfMemory, Moment::End]);
        let mut all: Vec<&mut dyn Observer> = vec![&mut landmarks, &mut catcher];
        for observer in observers.iter_mut() {
            all.push(&mut **observer);
        }
        let job = with_progress(&journal, |progress| Job::load_with(&journal, &mut all, progress))?;
        let mut sets = catcher.finish(&job.ledger).into_iter();
        let mut next = || sets.next().flatten();
        let (peak, failure, end) = (next().unwrap_or_default(), next(), next().unwrap_or_default());
        Ok(Study {
            journal,
            job,
            labels: Labels { stacks },
            landmarks,
            peak,
            failure,
            end,
        })
    }

    /// Reads the journal again.
    pub fn again(&self, observers: &mut [&mut dyn Observer]) -> Result<Job, LoadError> {
        with_progress(&self.journal, |progress| {
            Job::load_with(&self.journal, observers, progress)
        })
    }

    /// What was live at these moments.
    pub fn at(&self, moments: &[Moment]) -> Result<Vec<Option<LiveSet>>, LoadError> {
        let mut catcher = Catcher::new(moments);
        let job = self.again(&mut [&mut catcher])?;
        Ok(catcher.finish(&job.ledger))
    }

    /// The rank, the process and the name of the job.
    pub fn title(&self) -> String {
        let rank = match rank(&self.job.header) {
            Some(rank) => format!(", rank {rank}"),
            None => String::new(),
        };
        format!(
            "{} (process {}{rank})",
            printable(&self.job.title(), 80),
            self.job.header.pid
        )
    }

    /// What holders are grouped by if `wanted` is asked for, and why if it is not that.
    pub fn grouping(&self, wanted: Option<By>, live: &[Live]) -> (By, Option<String>) {
        let is_known = |live: &Live| self.labels.frames(live.stack).is_ok();
        match wanted {
            Some(By::Stack) | None if live.iter().any(is_known) => (By::Stack, None),
            None => (By::Size, None),
            Some(By::Stack) => {
                let why = live.first().map_or(NoStack::Off, |live| {
                    NoStack::stack(live.stack).err().unwrap_or(NoStack::Off)
                });
                let why = match (why, &self.labels.stacks) {
                    (NoStack::Off, None) => "not recorded; run the job with --stacks python, native or both",
                    (NoStack::Off, Some(_)) => "they are not in the file of stacks",
                    (why, _) => why.words(),
                };
                let why = format!("The records have no stacks: {why}. Grouped by size.");
                (By::Size, Some(why))
            }
            Some(by) => (by, None),
        }
    }

    /// What a holder is called. Holders of one line of code have one name.
    pub fn label(&self, key: Key) -> String {
        printable(&self.labels.key(key), 160)
    }
}

/// The share of bytes without a stack, and the most frequent reason; `None` if all have one.
pub fn without_stacks(live: &[Live]) -> Option<String> {
    let all = live.iter().map(|live| live.allocated).fold(0, u64::saturating_add);
    let mut reasons: Vec<(u64, NoStack)> = NoStack::ALL.into_iter().map(|reason| (0, reason)).collect();
    for live in live {
        if let Err(reason) = NoStack::stack(live.stack)
            && let Some(sum) = reasons.iter_mut().find(|(_, known)| *known == reason)
        {
            sum.0 = sum.0.saturating_add(live.allocated);
        }
    }
    reasons.retain(|(bytes, _)| *bytes > 0);
    reasons.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    if reasons.is_empty() {
        return None;
    }
    let part = |(bytes, reason): &(u64, NoStack)| {
        format!(
            "{} ({})",
            percent(Some(*bytes as f64 / all.max(1) as f64)),
            reason.words()
        )
    };
    let parts: Vec<String> = reasons.iter().map(part).collect();
    Some(format!("Bytes without a stack: {}", parts.join(", ")))
}

/// The time from start to end, as the header tells it.
pub fn time_taken_ns(journal: &Journal) -> u64 {
    journal.ended_ns().unwrap_or(0).max(journal.alive_ns())
}
