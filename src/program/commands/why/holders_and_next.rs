//! What follows from a verdict: who held the most, what to do next, and whether a strategy would have served the
//! request.

use std::collections::HashMap;

use base::api::Api;
use journal::reader::{Journal, State};
use policy::Strategy;
use serde::Serialize;

use crate::analysis::came::Came;
use crate::analysis::device_ledger::Live;
use crate::analysis::finding::{Failure, Verdict};
use crate::analysis::job::Job;
use crate::analysis::labels::Labels;
use crate::analysis::live_set::{self, By, DeviceSet, Key, Moment, Named, by_name};
use crate::analysis::tensor_records::Tensors;
use crate::render::format::{count, duration, shown, size};
use crate::render::next_step::{self, Step};
use crate::replay::{Setup, Trace, play};

/// A journal with more events is not played: that takes too long for a first answer.
const MOST_EVENTS: u64 = 1_000_000;
/// PyTorch tells of its failure soon after the driver's.
const SAME_MOMENT_NS: u64 = 100_000_000;

/// Of a stack, the line of the job and those that called it.
const LINES: usize = 3;

pub struct Advice {
    /// The moment of the holders, in words.
    pub moment: String,
    pub holders: Vec<Holder>,
    /// How many holders there are in all.
    pub all_holders: usize,
    pub next: Vec<Step>,
    pub replay: Option<Replay>,
}

/// Live allocations that have something in common.
#[derive(Serialize)]
pub struct Holder {
    pub what: String,
    pub bytes: u64,
    /// 0 if it is not known.
    pub count: u64,
    /// `None` if it is not known.
    pub oldest_ns: Option<u64>,
}

/// What a strategy would have made of the requests.
#[derive(Serialize)]
pub struct Replay {
    pub strategy: &'static str,
    /// Bytes that this process could have had of the device.
    #[serde(rename = "device_memory")]
    pub room: u64,
    pub fits: bool,
    #[serde(rename = "peak_reserved")]
    pub peak: u64,
}

impl Replay {
    /// What is worth a line about it.
    fn told(&self, job: &Job, failure: &Failure) -> Option<String> {
        let Replay { strategy, room, .. } = self;
        match (self.fits, failure.shortage.verdict()) {
            (true, _) => Some(format!(
                "Replay: under {strategy} this request fits, with {} of {} reserved: vramshim run {}--strategy {strategy}",
                size(self.peak),
                size(*room),
                if job.tensors.is_some() {
                    "--torch allocator "
                } else {
                    ""
                }
            )),
            (false, Verdict::LiveSet | Verdict::Unusable) => Some(format!(
                "Replay: under {strategy} this request does not fit into {} either",
                size(*room)
            )),
            (false, _) => None,
        }
    }
}

impl Advice {
    pub fn for_job(job: &Job, top: usize) -> Advice {
        let finding = job.finding();
        let (moment, when) = match (&finding.failure, job.state) {
            (Some(failure), _) if failure.request.is_some() => (Moment::OutOfMemory, "at the failure"),
            (Some(_), _) | (None, State::Killed) => (Moment::End, "at the end"),
            (None, _) => (Moment::Peak, "at the peak"),
        };
        let device = match (&finding.failure, finding.distance) {
            (Some(failure), _) => Some(failure.scene.device),
            (None, distance) => distance.map(|distance| distance.device),
        };
        // Without its record, a framework's tensors are not known, only the segments of its cache.
        let at_ns = match (&finding.failure, moment) {
            (Some(failure), _) => Some(failure.scene.time_ns),
            (None, Moment::End) => Some(job.duration_ns),
            (None, _) => None,
        };
        let moment_in_words = match (&job.tensors, job.caches()) {
            (Some(tensors), _) => {
                let before = at_ns.and_then(|at_ns| Some(at_ns - tensors.snapshot_before(at_ns)?));
                let from = match before {
                    None => String::new(),
                    Some(0..=SAME_MOMENT_NS) => " (PyTorch's snapshot of that moment)".to_owned(),
                    Some(before_ns) => format!(" (PyTorch's snapshot of {} before)", duration(before_ns)),
                };
                format!("{when}: PyTorch's tensors{from} and other code's memory")
            }
            (None, Some(_)) => format!("{when}: segments of PyTorch's cache and other code's memory"),
            (None, None) => when.to_owned(),
        };
        let (mut holders, came_again) = device.map_or_else(Default::default, |device| holders(job, device, moment));
        let all_holders = holders.len();
        holders.truncate(top);
        let replay = finding.failure.as_ref().and_then(|failure| replayed(job, failure));
        let mut next = match &finding.failure {
            Some(failure) => next_step::after(
                job,
                failure,
                replay.as_ref().and_then(|replay| replay.told(job, failure)),
            ),
            None => next_step::without_failure(job),
        };
        if finding.verdict == Verdict::LiveSet && came_again > 0 {
            next.push(Step::from(format!(
                "{} came again and again and stayed: a leak, or data that the job loaded until the failure. vramshim inspect \
                 --leaks {} names it",
                size(came_again),
                shown(&job.path)
            )));
        }
        Advice {
            moment: moment_in_words,
            holders,
            all_holders,
            next,
            replay,
        }
    }
}

/// The holders of a device at a moment, most bytes first, and the bytes of those that came again and again and stayed;
/// none if the journal cannot be read again.
fn holders(job: &Job, device: i16, moment: Moment) -> (Vec<Holder>, u64) {
    let none = (Vec::new(), 0);
    let Ok(journal) = Journal::open(&job.path) else {
        return none;
    };
    let labels = Labels::load(&job.path);
    let Ok((_, sets)) = live_set::read(&journal, &[moment]) else {
        return none;
    };
    let Some(set) = sets.into_iter().flatten().next() else {
        return none;
    };
    let Some(set) = set.devices.into_iter().find(|set| set.device == device) else {
        return none;
    };
    named(job, &set, &labels)
}

/// By stack if stacks were recorded, else by size; with PyTorch's tensors, what other code has apart. Also returns the bytes
/// of the holders that came again and again until this moment and stayed.
fn named(job: &Job, set: &DeviceSet, labels: &Labels) -> (Vec<Holder>, u64) {
    let has_stacks = set.live.iter().any(|live| labels.frames(live.stack).is_ok());
    let by = if has_stacks { By::Stack } else { By::Size };
    let is_tensor = |live: &&Live| live.api == Api::torch_alloc.number();
    let (tensors, others): (Vec<&Live>, Vec<&Live>) = match job.tensors {
        Some(_) => set.live.iter().partition(is_tensor),
        None => (Vec::new(), set.live.iter().collect()),
    };
    // What came after the last snapshot may be PyTorch's.
    let snapshots = job.tensors.as_ref().filter(|tensors| tensors.snapshots);
    let until_ns = snapshots.map_or(u64::MAX, Tensors::until_ns);
    let (others, later): (Vec<&Live>, Vec<&Live>) = others.into_iter().partition(|live| live.time_ns <= until_ns);
    let of_others = match job.tensors {
        Some(_) => "memory that PyTorch did not allocate: ",
        None => "",
    };
    let of_later = "memory that came after PyTorch's last snapshot: ";
    let (mut holders, mut came_again) = (Vec::new(), 0u64);
    for (part, whose) in [(tensors, ""), (others, of_others), (later, of_later)] {
        let mut came: HashMap<Key, Came> = HashMap::new();
        for live in &part {
            let of_key = came.entry(Key::for_live(live, by)).or_default();
            of_key.add(live.time_ns, set.time_ns);
        }
        let groups = live_set::holders(part, |live| Key::for_live(live, by));
        let named = by_name(groups, |holder| match holder.key {
            Key::Stack(number) => labels.stack_with(number, LINES),
            Key::Size(bytes) => format!("{} x {}", count(holder.count), size(bytes)),
            key => labels.key(key),
        });
        for Named { name, sum, keys } in named {
            if Came::of_all(keys.iter().map(|key| came[key])).again_and_again() {
                came_again = came_again.saturating_add(sum.bytes);
            }
            holders.push(Holder {
                what: format!("{whose}{name}"),
                bytes: sum.bytes,
                count: sum.count,
                oldest_ns: Some(sum.oldest_ns),
            });
        }
    }
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    (holders, came_again)
}

fn replayed(job: &Job, failure: &Failure) -> Option<Replay> {
    let shortage = &failure.shortage;
    let worth = matches!(
        shortage.verdict(),
        Verdict::LiveSet | Verdict::Unusable | Verdict::Growth | Verdict::Limit | Verdict::GroupLimit
    );
    let strategy = Strategy::AutoGrowth.name();
    let runs_it = job.header.strategy == strategy;
    let knows_requests = match &job.tensors {
        Some(tensors) => !tensors.snapshots,
        None => job.caches().is_none(),
    };
    if !worth || runs_it || !knows_requests || failure.scene.of_host {
        return None;
    }
    let parts = shortage.parts?;
    let of_device = parts
        .total
        .saturating_sub(parts.context)
        .saturating_sub(parts.others.unwrap_or(0))
        .saturating_sub(u64::try_from(parts.unknown).unwrap_or(0));
    let of_limit = match (
        shortage.allowance,
        job.header.device(failure.scene.device).and_then(|device| device.limit),
    ) {
        (Some(allowance), _) => Some(allowance.limit.saturating_sub(allowance.of_members())),
        // What other members held is not known.
        (None, Some(_)) if shortage.is_of_group() => return None,
        (None, limit) => limit,
    };
    let of_limit = of_limit.map(|limit| limit.saturating_sub(parts.context));
    let room = of_device
        .min(of_limit.unwrap_or(u64::MAX))
        .saturating_sub(failure.scene.around.unserved);
    if job.ledger.events > MOST_EVENTS {
        return None;
    }
    let trace = Trace::load(&job.path, Some(failure.scene.device)).ok()?;
    // A request for memory that no strategy serves is not in the trace, nor is one after which the job got memory.
    if trace.fatal != Some(failure.scene.requested) {
        return None;
    }
    let setup = Setup {
        settings: Default::default(),
        device_memory: room,
        prices: Default::default(),
        lag_ns: 0,
        repetitions: 1,
    };
    let outcome = play(&trace, strategy, &setup)?;
    Some(Replay {
        strategy,
        room,
        fits: outcome.failed == 0,
        peak: outcome.peak_reserved,
    })
}
