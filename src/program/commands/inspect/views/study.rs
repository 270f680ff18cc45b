//! One journal as the views need it: the job, its landmarks, and what was live at its peak, failure and end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use config::{Stacks, table};
use journal::format::MarkKind;
use journal::reader::{Header, Journal, State, TensorFile};

use super::when::When;
use crate::analysis::device_ledger::Live;
use crate::analysis::floors::Growth;
use crate::analysis::frameless::Frameless;
use crate::analysis::job::{Job, LoadError, Observer, check_budget};
use crate::analysis::labels::Labels;
use crate::analysis::landmarks::{Landmarks, Mark};
use crate::analysis::live_set::{By, Catcher, Key, LiveSet, Moment};
use crate::analysis::rank::rank;
use crate::analysis::stack_uses::Uses;
use crate::analysis::tensors::Tensors;
use crate::journals::with_progress;
use crate::render::format::{duration, percent, printable};

const MOMENTS: [Moment; 3] = [Moment::Peak, Moment::OutOfMemory, Moment::End];
/// The most marks that are named.
const MOST_NAMED: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum MomentError {
    /// Why a job does not have the moment that the user named.
    #[error("{0}")]
    Missing(String),
    #[error(transparent)]
    Load(#[from] LoadError),
}

fn known_marks(names: &[String]) -> String {
    let shown = names[..names.len().min(MOST_NAMED)].join(", ");
    match names.len() {
        0 => "the job set no marks (vramshim_mark or NVTX ranges)".to_owned(),
        1..=MOST_NAMED => format!("there are {shown}"),
        all => format!("there are {shown} and {} more", all - MOST_NAMED),
    }
}

pub struct Study {
    pub journal: Journal,
    pub job: Job,
    pub labels: Labels,
    pub landmarks: Landmarks,
    /// What the records say of stacks.
    pub uses: Uses,
    pub peak: LiveSet,
    pub failure: Option<LiveSet>,
    pub end: LiveSet,
}

impl Study {
    /// Reads the journal once. PyTorch's tensors are the allocations, if they were recorded.
    pub fn read(path: &Path) -> Result<Study, LoadError> {
        Study::of(Journal::open(path).map_err(LoadError::Open)?, &MOMENTS)
    }

    /// The same, without what was live if the journal does not tell which code asked for it.
    pub fn of_code(path: &Path) -> Result<Study, LoadError> {
        let journal = Journal::open(path).map_err(LoadError::Open)?;
        let is_told = records_stacks(journal.header()) || TensorFile::beside(path).exists();
        Study::of(journal, if is_told { &MOMENTS } else { &[] })
    }

    fn of(journal: Journal, moments: &[Moment]) -> Result<Study, LoadError> {
        let path = journal.path();
        let labels = Labels::load(path);
        let (mut landmarks, mut uses) = (Landmarks::default(), Uses::default());
        let mut catcher = Catcher::new(moments);
        let mut all: [&mut dyn Observer; 3] = [&mut landmarks, &mut uses, &mut catcher];
        let job = with_progress(&journal, |progress| Job::load_with(&journal, false, &mut all, progress))?;
        let mut sets = catcher.finish(&job.ledger).into_iter();
        let mut next = || sets.next().flatten();
        let (peak, failure, mut end) = (next().unwrap_or_default(), next(), next().unwrap_or_default());
        for set in &mut end.devices {
            set.time_ns = ended_ns(&job);
        }
        uses.finish(&job.ledger);
        check_budget(path)?;
        Ok(Study {
            journal,
            job,
            labels,
            landmarks,
            uses,
            peak,
            failure,
            end,
        })
    }

    pub fn has_stacks(&self) -> bool {
        records_stacks(&self.job.header)
    }

    /// Whether stacks or PyTorch tell which code has memory.
    pub fn knows_code(&self) -> bool {
        self.has_stacks() || self.job.tensors.is_some()
    }

    pub fn tensors(&self) -> Option<Tensors> {
        Tensors::of(
            &self.job,
            [Some(&self.peak), self.failure.as_ref(), Some(&self.end)],
            &self.labels,
        )
    }

    pub fn again(&self, observers: &mut [&mut dyn Observer]) -> Result<Job, LoadError> {
        with_progress(&self.journal, |progress| {
            Job::load_with(&self.journal, false, observers, progress)
        })
    }

    pub fn set_at(&self, when: &When) -> Result<LiveSet, MomentError> {
        let moment = match when {
            When::Peak => return Ok(self.peak.clone()),
            When::End => return Ok(self.end.clone()),
            When::OutOfMemory => {
                let none = || MomentError::Missing("no request failed for lack of memory".to_owned());
                return self.failure.clone().ok_or_else(none);
            }
            &When::Time(time_ns) => {
                let ended_ns = self.ended_ns();
                if time_ns > ended_ns {
                    let [at, ended] = [time_ns, ended_ns].map(duration);
                    return Err(MomentError::Missing(format!(
                        "{at} is after the end of the job, {ended}"
                    )));
                }
                Moment::Time(time_ns)
            }
            When::Mark(name) => Moment::Mark(self.mark(name)?),
        };
        Ok(self.caught(moment)?.unwrap_or_default())
    }

    fn caught(&self, moment: Moment) -> Result<Option<LiveSet>, LoadError> {
        let mut catcher = Catcher::new(&[moment]);
        let mut job = self.again(&mut [&mut catcher])?;
        Ok(catcher.take(moment, &mut job.ledger))
    }

    /// What was live before an ended job freed what it frees on its way out, and when it began to; `None` if it freed nothing
    /// then.
    pub fn before_clean_up(&self) -> Result<Option<(u64, LiveSet)>, LoadError> {
        let cleared_ns = self.landmarks.cleared_ns.filter(|_| self.job.state != State::Running);
        let Some(cleared_ns) = cleared_ns else { return Ok(None) };
        let set = self.caught(Moment::Time(cleared_ns.saturating_sub(1)))?;
        Ok(set.map(|set| (cleared_ns, set)))
    }

    /// The number of the text of the last mark with this name.
    pub fn mark(&self, name: &str) -> Result<u64, MomentError> {
        let text = |mark: &Mark| self.labels.stacks().and_then(|stacks| stacks.text(mark.text));
        let mut marks = self.landmarks.marks.iter().rev();
        let begins = |mark: &&Mark| mark.kind != MarkKind::End && text(mark) == Some(name);
        match marks.find(begins) {
            Some(mark) => Ok(mark.text),
            None => {
                let known: BTreeSet<&str> = self.landmarks.marks.iter().filter_map(text).collect();
                let known: Vec<String> = known.into_iter().map(|name| printable(name, 40)).collect();
                let (name, known) = (printable(name, 80), known_marks(&known));
                Err(MomentError::Missing(format!("no mark {name}: {known}")))
            }
        }
    }

    /// When the job ended, or until when it ran so far, in nanoseconds since the journal began.
    pub fn ended_ns(&self) -> u64 {
        ended_ns(&self.job)
    }

    /// Until when what lives at the end can have come. A job that died for lack of memory may take long to end after the
    /// last request that was served.
    pub fn served_until_ns(&self) -> u64 {
        let has_died = !matches!(self.job.state, State::Running | State::Exited(0));
        if self.failure.is_some() && has_died {
            self.landmarks.served_ns
        } else {
            self.ended_ns()
        }
    }

    /// The growth of a device's live bytes that `why` tells: up to the failure, or else up to the end.
    pub fn growth(&self, device: i16) -> Option<Growth> {
        let failure = self.job.finding().failure;
        match failure.filter(|failure| failure.scene.device == device) {
            Some(failure) => failure.scene.around.growth,
            None => self.job.ledger.devices.get(&device)?.floors.growth(),
        }
    }

    pub fn is_whole(&self) -> bool {
        self.job.lost == 0 && self.job.damaged == 0
    }

    /// The sentence for a journal that is whole or not.
    pub fn of_what_is_left(&self, whole: &'static str, left: &'static str) -> &'static str {
        if self.is_whole() { whole } else { left }
    }

    /// What allocations are in the figures, if a reader may take them for others.
    pub fn note(&self) -> Option<String> {
        match (&self.job.tensors, self.job.caches()) {
            (Some(tensors), _) if self.job.has_snapshots() => Some(format!(
                "Allocations are PyTorch's tensors by its snapshots, the last at {}: what came and went between two is not \
                 known, and a tensor's time is that of the first snapshot with it. --torch record tells both.{}",
                duration(tensors.until_ns()),
                tensors.note().map_or(String::new(), |note| format!(" {note}"))
            )),
            (Some(tensors), _) => Some(format!(
                "Allocations are PyTorch's tensors, from its own record; what it obtained for them is reserved.{}",
                tensors.note().map_or(String::new(), |note| format!(" {note}"))
            )),
            (None, Some(framework)) => Some(format!(
                "Allocations are segments of {framework}'s own cache, not its tensors: run the job with --torch record to \
                 see those."
            )),
            (None, None) => self.job.ledger.begins_late.then(|| {
                "Memory was in use before the trace begins: peaks are at least what is told, and what was live at its begin is \
                 older than it."
                    .to_owned()
            }),
        }
    }

    pub fn title(&self) -> String {
        let rank = match rank(&self.job.header) {
            Some(rank) => format!(", rank {}", printable(&rank, 12)),
            None => String::new(),
        };
        let process = if self.job.is_imported() {
            "imported".to_owned()
        } else {
            format!("process {}", self.job.header.pid)
        };
        format!("{} ({process}{rank})", printable(&self.job.title(), 80))
    }

    /// What holders are grouped by if `wanted` is asked for, and why if it is not that.
    pub fn grouping(&self, wanted: Option<By>, live: &[Live]) -> (By, Option<String>) {
        let is_known = |live: &Live| self.labels.frames(live.stack).is_ok();
        match wanted {
            Some(By::Stack) | None if live.iter().any(is_known) => (By::Stack, None),
            None => (By::Size, None),
            Some(By::Stack) => {
                let why = self.frameless(live).first().map(|&(_, why)| self.in_words(why));
                let none = "nothing was allocated".to_owned();
                let why = format!("The records have no stacks: {}. Grouped by size.", why.unwrap_or(none));
                (By::Size, Some(why))
            }
            Some(by) => (by, None),
        }
    }

    /// The bytes without frames, by reason, most bytes first.
    fn frameless(&self, live: &[Live]) -> Vec<(u64, Frameless)> {
        let mut reasons: BTreeMap<Frameless, u64> = BTreeMap::new();
        for live in live {
            if let Err(why) = self.labels.frames(live.stack) {
                let sum = reasons.entry(why).or_default();
                *sum = sum.saturating_add(live.allocated);
            }
        }
        let mut reasons: Vec<_> = reasons.into_iter().map(|(why, bytes)| (bytes, why)).collect();
        reasons.sort_by_key(|&(bytes, why)| (Reverse(bytes), why));
        reasons
    }

    /// Why there are no frames, and what can be done.
    fn in_words(&self, why: Frameless) -> String {
        let has_stacks = self.labels.stacks().is_some_and(|stacks| !stacks.is_empty());
        why.in_words(&self.job.path, &self.job.header, has_stacks)
    }

    /// The share of bytes without a stack, by reason; `None` if all have one.
    pub fn without_stacks(&self, live: &[Live]) -> Option<String> {
        let all = live.iter().map(|live| live.allocated).fold(0, u64::saturating_add);
        let part = |&(bytes, why): &(u64, Frameless)| {
            let share = percent(Some(bytes as f64 / all.max(1) as f64));
            let words = match why {
                Frameless::NotInFile => self.in_words(why),
                why => why.words().to_owned(),
            };
            format!("{share} ({words})")
        };
        let parts: Vec<String> = self.frameless(live).iter().map(part).collect();
        (!parts.is_empty()).then(|| format!("Bytes without a stack: {}", parts.join(", ")))
    }

    /// What a holder is called. Holders of one line of code have one name.
    pub fn label(&self, key: Key) -> String {
        printable(&self.labels.key(key), 160)
    }
}

fn records_stacks(header: &Header) -> bool {
    let set = header.environment.iter().find(|(name, _)| name == table::STACKS.name);
    let kinds = set.and_then(|(_, value)| Stacks::parse(value.trim()));
    kinds.is_some_and(|kinds| kinds != Stacks::Off)
}

fn ended_ns(job: &Job) -> u64 {
    job.duration_ns.max(job.ledger.last_ns)
}
