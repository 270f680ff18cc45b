//! What follows from a verdict: who held the most, what to do next, and whether a strategy would have served the
//! request.

use base::api::Api;
use journal::format::{Frame, NoStack, line_of_the_job};
use journal::reader::{Journal, Stacks, State};
use policy::Strategy;

use crate::analysis::job::Job;
use crate::analysis::live_set::{self, By, DeviceSet, Key, Moment};
use crate::analysis::names::api_name;
use crate::analysis::stacks;
use crate::analysis::verdict::{Failure, Verdict};
use crate::render::format::{count, size};
use crate::render::verdict::process_name;
use crate::replay::{Setup, Trace, play};

/// A journal with more events is not played: that takes too long for a first answer.
const MOST_EVENTS: u64 = 1_000_000;

pub struct Advice {
    /// The moment of the holders, in words.
    pub moment: &'static str,
    pub holders: Vec<Holder>,
    /// How many holders there are in all.
    pub all_holders: usize,
    pub next: Vec<String>,
    pub replay: Option<Replay>,
}

/// Live allocations that have something in common.
pub struct Holder {
    pub what: String,
    pub bytes: u64,
    pub count: u64,
    pub oldest_ns: u64,
}

/// What a strategy would have made of the requests.
pub struct Replay {
    pub strategy: &'static str,
    /// Bytes that this process could have had of the device.
    pub room: u64,
    pub fits: bool,
    pub peak: u64,
}

impl Advice {
    pub fn of(job: &Job, top: usize) -> Advice {
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
        let mut holders = device.map_or_else(Vec::new, |device| holders(job, device, moment));
        let all_holders = holders.len();
        holders.truncate(top);
        let replay = finding.failure.as_ref().and_then(|failure| replayed(job, failure));
        let next = finding
            .failure
            .as_ref()
            .map_or_else(|| without_failure(job), |failure| next(job, failure, replay.as_ref()));
        Advice {
            moment: when,
            holders,
            all_holders,
            next,
            replay,
        }
    }
}

/// The holders of a device at a moment, most bytes first; none if the journal cannot be read again.
fn holders(job: &Job, device: i16, moment: Moment) -> Vec<Holder> {
    let Ok(journal) = Journal::open(&job.path) else {
        return Vec::new();
    };
    let sets = live_set::read(&journal, &[moment], |_, _| {}).unwrap_or_default();
    let Some(set) = sets.into_iter().flatten().next() else {
        return Vec::new();
    };
    let Some(set) = set.devices.into_iter().find(|set| set.device == device) else {
        return Vec::new();
    };
    let stacks = stacks::load(&job.path).ok().flatten();
    named(&set, stacks.as_ref())
}

/// By stack if stacks were recorded, else by size.
fn named(set: &DeviceSet, stacks: Option<&Stacks>) -> Vec<Holder> {
    let place = |number: u32| {
        let number = NoStack::stack(number).ok()?;
        called_from(&stacks?.get(number)?.frames)
    };
    let has_stacks = set.live.iter().any(|live| place(live.stack).is_some());
    let by = if has_stacks { By::Stack } else { By::Size };
    let holders = set.holders(by).into_iter();
    holders
        .map(|holder| Holder {
            what: match holder.key {
                Key::Stack(number) => place(number).unwrap_or_else(|| "without a stack".to_owned()),
                Key::Size(bytes) => format!("{} x {}", count(holder.count), size(bytes)),
                Key::Api(api) => api_name(api),
                _ => String::new(),
            },
            bytes: holder.bytes,
            count: holder.count,
            oldest_ns: holder.oldest_ns,
        })
        .collect()
}

/// The line of the job's code, and the lines that called it.
fn called_from(frames: &[Frame]) -> Option<String> {
    const SHOWN: usize = 3;
    let first = line_of_the_job(frames)?;
    let from = frames.iter().position(|frame| frame == first).unwrap_or(0);
    let one = |(frame, number): (&Frame, usize)| {
        let file = match number {
            0 => &*frame.file,
            _ => frame.file.rsplit('/').next().unwrap_or_default(),
        };
        match frame.line {
            0 => frame.function.to_string(),
            line => format!("{file}:{line} {}", frame.function),
        }
    };
    let lines: Vec<String> = frames[from..].iter().zip(0..).take(SHOWN).map(one).collect();
    Some(lines.join(" < "))
}

fn replayed(job: &Job, failure: &Failure) -> Option<Replay> {
    let shortage = &failure.shortage;
    let worth = matches!(
        shortage.verdict(),
        Verdict::LiveSet | Verdict::Unusable | Verdict::Growth | Verdict::Limit | Verdict::GroupLimit
    );
    let strategy = Strategy::AutoGrowth.name();
    let runs_it = job.header.strategy == strategy;
    if !worth || runs_it || job.caches().is_some() || failure.scene.of_host {
        return None;
    }
    let parts = shortage.parts?;
    let of_device = parts
        .total
        .saturating_sub(parts.context)
        .saturating_sub(parts.others.unwrap_or(0))
        .saturating_sub(u64::try_from(parts.unknown).unwrap_or(0));
    let of_limit = shortage.allowance.filter(|_| shortage.by_limit).map(|allowance| {
        allowance
            .limit
            .saturating_sub(allowance.of_members())
            .saturating_sub(parts.context)
    });
    let room = of_device.min(of_limit.unwrap_or(u64::MAX));
    if job.ledger.events > MOST_EVENTS {
        return None;
    }
    let trace = Trace::load(&job.path, Some(failure.scene.device)).ok()?;
    let setup = Setup {
        settings: Default::default(),
        device_memory: room,
        prices: Default::default(),
        lag_ns: 0,
        repetitions: 1,
    };
    let outcome = play(&trace, strategy, &setup, &|_| ())?;
    Some(Replay {
        strategy,
        room,
        fits: outcome.failed == 0,
        peak: outcome.peak_reserved,
    })
}

fn next(job: &Job, failure: &Failure, replay: Option<&Replay>) -> Vec<String> {
    let shortage = &failure.shortage;
    let parts = shortage.parts.unwrap_or_default();
    let others = failure
        .scene
        .processes
        .iter()
        .filter(|process| process.pid != job.header.pid);
    let largest = others.max_by_key(|process| process.bytes);
    let mut next = Vec::new();
    match shortage.verdict() {
        Verdict::NoneFailed => {}
        Verdict::NotEnoughEvidence => next.push(
            "Let NVML name the processes on the device: vramshim doctor says whether it does. In a container that takes \
             the host's process ids (--pid=host)"
                .to_owned(),
        ),
        Verdict::LargerThanDevice => next.push(format!(
            "Ask for at most {}: that is left of an empty device beside this process's context",
            size(parts.total.saturating_sub(parts.context))
        )),
        Verdict::LiveSet | Verdict::Growth | Verdict::Unusable => {
            let lacking = shortage.short_of().unwrap_or(0);
            if lacking > 0 && shortage.verdict() != Verdict::Unusable {
                next.push(format!(
                    "Hold {} less before this request, or use a device of at least {}",
                    size(lacking),
                    size(parts.total.saturating_add(lacking))
                ));
            }
            if shortage.verdict() == Verdict::Growth {
                next.push("Look for what is kept from step to step: the holders above with a growing count".to_owned());
            }
        }
        Verdict::OtherProcesses => {
            if let Some(process) = largest {
                next.push(format!(
                    "End process {} ({} on this device), or give this job another device",
                    process_name(process),
                    process.bytes.map_or("unknown".to_owned(), size)
                ));
            }
        }
        Verdict::Limit | Verdict::GroupLimit => {
            if let Some(process) = largest.filter(|_| shortage.verdict() == Verdict::GroupLimit) {
                next.push(format!(
                    "End process {} of the group ({}), or raise the limit",
                    process_name(process),
                    process.bytes.map_or("unknown".to_owned(), size)
                ));
            } else if let Some(allowance) = shortage.allowance {
                next.push(format!(
                    "Raise the limit to at least {}MiB, or hold {} less",
                    allowance.used.saturating_add(shortage.requested).div_ceil(1 << 20),
                    size(shortage.requested.saturating_sub(allowance.room()))
                ));
            }
        }
        Verdict::Driver => next.push(
            "Look for the driver's own message: dmesg (NVRM, Xid), nvidia-smi -q; vramshim doctor examines the driver"
                .to_owned(),
        ),
    }
    match replay {
        Some(Replay {
            strategy,
            room,
            fits: true,
            peak,
        }) => next.push(format!(
            "Replay: under {strategy} this request fits, with {} of {} reserved: vramshim run --strategy {strategy}",
            size(*peak),
            size(*room)
        )),
        Some(Replay { strategy, room, .. }) if matches!(shortage.verdict(), Verdict::LiveSet | Verdict::Unusable) => {
            next.push(format!(
                "Replay: under {strategy} this request does not fit into {} either",
                size(*room)
            ))
        }
        _ => {}
    }
    if let Some(framework) = job.caches()
        && matches!(shortage.verdict(), Verdict::LiveSet | Verdict::Unusable)
    {
        next.push(match failure.knows_cache {
            true => format!(
                "Run with --torch allocator: {framework} then keeps no cache, and a strategy serves each tensor; or let its \
                 segments grow: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            ),
            false => format!(
                "Run once with --torch record to see what {framework}'s cache holds, or with --torch allocator to do \
                 without it"
            ),
        });
    }
    next
}

fn without_failure(job: &Job) -> Vec<String> {
    let mut next = Vec::new();
    if job.state == State::Killed {
        next.push("Look for the kill: dmesg (out of memory of the host), the scheduler's log".to_owned());
    }
    if !job.ledger.apis.contains_key(&Api::cuMemAlloc.number()) && job.ledger.events == 0 {
        next.push("The process asked for no GPU memory under the library".to_owned());
    }
    next
}
