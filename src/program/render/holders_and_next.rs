//! Who held the most at the moment that a verdict is about, and whether a strategy would have served the request.

use std::cell::LazyCell;
use std::path::Path;

use journal::reader::State;
use policy::Strategy;

use crate::analysis::finding::{Failure, Finding, Verdict};
use crate::analysis::job::Job;
use crate::analysis::labels::Labels;
use crate::analysis::live_set::{self, By, Catcher, DeviceSet, Key, LiveSet, Moment, by_name};
use crate::analysis::tensors::Whose;
use crate::render::answer::{Answer, Holder, Holders};
use crate::render::format::{count, duration, size};
use crate::render::next_step::{CameAgain, Replayed};
use crate::replay::{Setup, Trace, play};

/// A journal with more events is not played: that takes too long for a first answer.
const MOST_EVENTS: u64 = 1_000_000;
/// PyTorch tells of its failure soon after the driver's.
const SAME_MOMENT_NS: u64 = 100_000_000;

/// Of a stack, the line of the job and those that called it.
const LINES: usize = 3;

/// The moments that a verdict can be about.
pub const MOMENTS: [Moment; 3] = [Moment::OutOfMemory, Moment::End, Moment::Peak];

fn moment_of(job: &Job, finding: &Finding) -> Moment {
    match (&finding.failure, job.state) {
        (Some(failure), _) if failure.scene.lacked_memory() => Moment::OutOfMemory,
        (Some(_), _) | (None, State::Killed) => Moment::End,
        (None, _) => Moment::Peak,
    }
}

/// What was live at the moment that the verdict of the job is about, of what was caught while the journal was read. The
/// ledger gives its live allocations away for it.
pub fn set_of(job: &mut Job, caught: Catcher) -> Option<LiveSet> {
    caught.take(moment_of(job, &job.finding()), &mut job.ledger)
}

/// The requests of a device, which are read if they are asked for; `None` if none can be played.
pub type Requests<'a> = LazyCell<Option<Trace>, Box<dyn FnOnce() -> Option<Trace> + 'a>>;

pub fn requests(path: &Path, device: Option<i16>) -> Requests<'_> {
    LazyCell::new(Box::new(move || Trace::load(path, device).ok()))
}

/// The answer about a job, of what was live at the moment that its verdict is about, with `top` holders. `requests` are those
/// of the device that it is about; without them no replay is made.
pub fn answer<'a>(
    job: &'a Job,
    set: Option<LiveSet>,
    labels: &Labels,
    top: usize,
    requests: Option<&Requests>,
) -> Answer<'a> {
    let failure = job.finding().failure;
    let replay = |requests| failure.and_then(|failure| replayed(job, &failure, requests));
    Answer::new(job, holders(job, set, labels, top), requests.map(replay).ok_or(()))
}

/// The holders of the device that the verdict is about, `top` of them.
fn holders(job: &Job, set: Option<LiveSet>, labels: &Labels, top: usize) -> Holders {
    let finding = job.finding();
    let moment = moment_of(job, &finding);
    let sets = set.into_iter().flat_map(|set| set.devices);
    let device = match (&finding.failure, finding.distance) {
        (Some(failure), _) => Some(failure.scene.device),
        (None, distance) => distance.map(|distance| distance.device),
    };
    let set = sets.into_iter().find(|set| Some(set.device) == device);
    let when = match moment {
        Moment::OutOfMemory => "at the failure",
        Moment::End => "at the end",
        _ if job.has_snapshots() => "at the highest that snapshots show",
        _ if job.tells_at_least() => "at the highest that is known",
        _ => "at the peak",
    };
    let at_ns = match (&finding.failure, moment) {
        (Some(failure), _) => Some(failure.scene.time_ns),
        (None, Moment::End) => Some(job.duration_ns),
        (None, _) => set.as_ref().map(|set| set.time_ns),
    };
    // Without its record, a framework's tensors are not known, only the segments of its cache.
    let moment = match (&job.tensors, job.caches()) {
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
    let mut holders = set.map_or_else(Holders::default, |set| named(job, &set, labels));
    (holders.moment, holders.in_all) = (moment, holders.list.len());
    let failed = finding.failure.as_ref().map(|failure| failure.scene.stack);
    holders.asked_by = failed
        .filter(|&stack| labels.frames(stack).is_ok())
        .map(|stack| labels.stack_with(stack, LINES));
    holders.list.truncate(top);
    holders
}

/// By stack if stacks were recorded, else by size; with PyTorch's tensors, what other code has apart.
fn named(job: &Job, set: &DeviceSet, labels: &Labels) -> Holders {
    let has_stacks = set.live.iter().any(|live| labels.frames(live.stack).is_ok());
    let by = if has_stacks { By::Stack } else { By::Size };
    let (others, later) = match &job.tensors {
        Some(tensors) => (
            "memory that PyTorch did not allocate: ",
            format!("memory that no {} of PyTorch shows: ", tensors.source()),
        ),
        None => ("", String::new()),
    };
    let shown_ns = job
        .tensors
        .as_ref()
        .map_or(0, |tensors| tensors.shown_until(set.time_ns));
    let mut parts = [("", Vec::new()), (others, Vec::new()), (later.as_str(), Vec::new())];
    for live in &set.live {
        parts[Whose::of(live, job.tensors.as_ref(), shown_ns) as usize]
            .1
            .push(live);
    }
    let (mut holders, mut came_again, mut most) = (Holders::default(), CameAgain::default(), 0);
    for (whose, live) in parts {
        let groups = live_set::holders(live, by, (0, set.time_ns));
        let named = by_name(groups, |holder| match holder.key {
            Key::Stack(number) => labels.stack_with(number, LINES),
            Key::Size(bytes) => format!("{} x {}", count(holder.count), size(bytes)),
            key => labels.key(key),
        });
        for named in named {
            if named.sum.came.again_and_again() {
                came_again.bytes = came_again.bytes.saturating_add(named.sum.bytes);
                if named.sum.bytes > most {
                    (came_again.most, most) = (format!("{whose}{}", named.name), named.sum.bytes);
                }
            }
            holders.list.push(Holder {
                what: format!("{whose}{}", named.name),
                bytes: named.sum.bytes,
                count: named.sum.count,
                oldest_ns: named.sum.oldest_ns,
            });
        }
    }
    holders.came_again = Some(came_again);
    holders.list.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders
}

/// What a replay of the job's requests found; `None` if it would tell nothing.
fn replayed(job: &Job, failure: &Failure, requests: &Requests) -> Option<Replayed> {
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
    let trace = requests.as_ref()?;
    // A request for memory that no strategy serves is not in the trace, nor is one after which the job got memory.
    if trace.fatal != Some(failure.scene.requested) || trace.is_partial() {
        return None;
    }
    let outcome = play(trace, strategy, &Setup::once(Default::default(), room))?;
    Some(Replayed {
        strategy,
        room,
        fits: outcome.failed == 0,
        peak: outcome.peak_reserved,
    })
}
