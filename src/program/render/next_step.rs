//! What to do next, as it follows from a verdict.

use std::cmp::Reverse;
use std::fmt;
use std::path::Path;

use base::cuda::DriverError;
use journal::format::{Amount, LimitSource, ProcessBytes, Reason, Teller};
use journal::reader::{Device, Header, State, TensorFile};
use serde::Serialize;

use super::format::{amount, count, enough, printable, shown, size};
use super::verdict_lines::process_name;
use crate::analysis::device_ledger::DeviceLedger;
use crate::analysis::finding::{Failure, Finding, Verdict};
use crate::analysis::job::Job;
use crate::analysis::rank::rank;
use crate::analysis::scene::Scene;
use crate::analysis::siblings::neighbour;

/// The strategy that serves a request from memory in several pieces.
const AUTO_GROWTH: &str = "auto_growth";

/// So many holders of a device are named at most.
const MOST_NAMED: usize = 8;

/// What can be done, and what is known of its effect.
pub struct Step {
    pub what: String,
    pub effect: Effect,
    /// The bytes that it can gain.
    pub gains: Amount,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It follows from the figures, or asks for more of them.
    Follows,
    /// The job's requests were replayed with it.
    Replayed,
    /// It may help.
    NotTried,
}

impl Step {
    fn untried(what: impl Into<String>, gains_at_most: Option<u64>) -> Step {
        Step {
            what: what.into(),
            effect: Effect::NotTried,
            gains: gains_at_most.map_or(Amount::NotKnown(Reason::NotAsked), Amount::AtMost),
        }
    }

    /// What to say of memory that came again and again and stayed, and whether it matters most: it is the most of what is live,
    /// or more than all that any cache wastes.
    pub fn for_leak(job: &Job, finding: &Finding, came: &CameAgain) -> Option<(Step, bool)> {
        let is_about = !finding.lived
            && (matches!(
                finding.verdict,
                Verdict::LiveSet | Verdict::Unusable | Verdict::OtherProcesses
            ) || job.is_imported() && finding.failure.is_some());
        let bytes = came.bytes;
        if bytes == 0 {
            let has_snapshots = job.has_snapshots();
            let step = "Run once with --torch record: snapshots do not tell whether this memory came from step to step, as in a leak";
            return (is_about && has_snapshots).then(|| (step.to_owned().into(), finding.verdict == Verdict::LiveSet));
        }
        let parts = finding.failure.as_ref().and_then(|failure| failure.shortage.parts);
        let is_most = parts.is_some_and(|parts| match finding.verdict {
            Verdict::LiveSet => bytes > parts.live / 2,
            Verdict::Unusable => bytes > parts.cached,
            _ => false,
        });
        // What pins a cache's segments is no leak because it stays.
        (is_about && (is_most || finding.verdict != Verdict::Unusable)).then(|| {
            let step = Step::from(format!(
                "{} came again and again and stayed, most of it by {}: a leak, or data that the job loaded until the failure. \
                 vramshim inspect --leaks {} says more",
                size(bytes),
                came.most,
                shown(&job.path)
            ));
            (step, is_most)
        })
    }
}

/// Memory that came again and again, and stayed.
#[derive(Default)]
pub struct CameAgain {
    pub bytes: u64,
    /// Which of them has the most bytes.
    pub most: String,
}

/// What a strategy would have made of the job's requests, as a replay found.
#[derive(Serialize)]
pub struct Replayed {
    pub strategy: &'static str,
    /// Bytes that this process could have had of the device.
    #[serde(rename = "device_memory")]
    pub room: u64,
    pub fits: bool,
    #[serde(rename = "peak_reserved")]
    pub peak: u64,
}

impl Replayed {
    /// What is worth a line about it.
    fn step(&self, job: &Job, verdict: Verdict) -> Option<Step> {
        let strategy = self.strategy;
        let allocator = job.tensors.as_ref().map_or("", |_| "--torch allocator ");
        let [room, peak] = [self.room, self.peak].map(size);
        let what = match (self.fits, verdict) {
            (true, _) => format!(
                "Replay: under {strategy} this request fits, with {peak} of {room} reserved; what would come after it is not known: \
                 vramshim run {allocator}--strategy {strategy}"
            ),
            (false, Verdict::LiveSet | Verdict::Unusable) => {
                format!("Replay: under {strategy} this request does not fit into {room} either")
            }
            (false, _) => return None,
        };
        let effect = Effect::Replayed;
        Some(Step { effect, ..what.into() })
    }
}

impl From<String> for Step {
    fn from(what: String) -> Step {
        Step {
            effect: Effect::Follows,
            ..Step::untried(what, None)
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.effect {
            Effect::NotTried => write!(f, "{} (may help, not tried: gains {})", self.what, amount(self.gains)),
            _ => f.write_str(&self.what),
        }
    }
}

/// What to do, the most promising first. `replayed`: what a replay of the job's requests found, or `Err` if none was made.
pub fn steps(job: &Job, finding: &Finding, replayed: &Result<Option<Replayed>, ()>) -> Vec<Step> {
    let Some(failure) = &finding.failure else {
        return without_failure(job, finding);
    };
    let verdict = finding.verdict;
    // A job that went on needs no other figures.
    let first = (!(finding.lived && verdict == Verdict::LiveSet)).then(|| first(job, failure));
    let mut next: Vec<Step> = (first.into_iter().flatten())
        .chain(find_tensors(job))
        .map(Step::from)
        .collect();
    next.extend(match replayed {
        Ok(replayed) => replayed.as_ref().and_then(|replayed| replayed.step(job, verdict)),
        // Who is told that free memory cannot be used asks what would use it.
        Err(()) => (verdict == Verdict::Unusable && failure.knows_cache()).then(|| {
            "vramshim why replays the requests, and says whether another strategy serves them"
                .to_owned()
                .into()
        }),
    });
    if matches!(verdict, Verdict::LiveSet | Verdict::Unusable) && (job.cache_owner().is_some() || job.is_imported()) {
        next.extend(without_cache(job, failure, matches!(replayed, Ok(Some(_)))));
    }
    if next.is_empty() && verdict == Verdict::Unusable {
        next.push(Step::untried(usable(job, failure), None));
    }
    next
}

/// How the job does without PyTorch's cache, if what is cached is enough or not known. What is set is not advised,
/// nor what was replayed.
fn without_cache(job: &Job, failure: &Failure, was_tried: bool) -> Vec<Step> {
    let shortage = &failure.shortage;
    let cached = shortage.known().map_or(0, |parts| parts.cached);
    if failure.knows_cache() && shortage.private > 0 {
        let what = "End graphs or pools that are not needed before this request, or let graphs share a pool \
                    (torch.cuda.graph(pool=...))";
        return vec![Step::untried(what, Some(shortage.private))];
    }
    if failure.knows_cache() && (cached == 0 || shortage.short_of().is_some_and(|short| cached < short)) {
        return Vec::new();
    }
    let gains = failure.knows_cache().then_some(cached);
    let record = "Run once with --torch record to see what PyTorch's cache holds".to_owned();
    let mut steps: Vec<Step> = gains.is_none().then(|| record.into()).into_iter().collect();
    let are_expandable = job.tensors.as_ref().is_some_and(|tensors| tensors.are_expandable());
    if !are_expandable && !job.sets_torch("expandable_segments:True") {
        let what = "Let PyTorch's segments grow: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        steps.push(Step::untried(what, gains));
    }
    let what = "Run with --torch allocator: PyTorch then keeps no cache, a strategy serves each tensor, and tensors have no lines";
    steps.extend((!was_tried).then(|| Step::untried(what, gains)));
    steps
}

/// What makes free memory usable, if neither a replay nor a framework's cache says more.
fn usable(job: &Job, failure: &Failure) -> String {
    if failure.shortage.largest_cached >= failure.shortage.requested {
        let or = match failure.shortage.one_stream {
            true => "give back what other pools keep",
            false => "make the request on the stream that freed the block",
        };
        format!("Wait for the work that may still use the free block before this request, or {or}")
    } else if job.header.strategy == AUTO_GROWTH {
        "Free what lies between the free blocks before this request, or ask for less at once".to_owned()
    } else {
        format!("Run with --strategy {AUTO_GROWTH}, which serves a request from memory in several pieces")
    }
}

fn first(job: &Job, failure: &Failure) -> Vec<String> {
    let shortage = &failure.shortage;
    let parts = shortage.parts.unwrap_or_default();
    let processes = failure.scene.processes.iter();
    let others = processes.filter(|process| process.pid != job.header.pid && process.told_by != Teller::Account);
    let lacking = shortage.short_of().filter(|lacking| *lacking > 0);
    let hold_less = |lacking: u64| {
        let needs = enough(parts.total.saturating_add(lacking));
        let has_cache = job.header.uses("PyTorch");
        let instead = match (parts.of_layer, needs == enough(parts.total)) {
            (true, _) if shortage.device_is_full() => "use a device with more free memory".to_owned(),
            (true, _) => format!("let {} give as much more", shortage.layer_words()),
            // What a cache asks for depends on the device's size.
            (false, same) if same || has_cache => {
                format!(
                    "use {}or a larger device: how large is not known",
                    with_room(job, failure)
                )
            }
            (false, _) => format!("use {}or a device of at least {needs}", with_room(job, failure)),
        };
        format!("Hold {} less before this request, or {instead}", enough(lacking))
    };
    match shortage.verdict() {
        Verdict::NoneFailed | Verdict::Unusable => Vec::new(),
        Verdict::NotEnoughEvidence if shortage.lost_before > 0 => {
            vec![have_all_events(job)]
        }
        Verdict::NotEnoughEvidence if job.is_imported() => vec![
            "An imported trace does not tell what others held. Run the job with vramshim run to have a verdict".to_owned(),
        ],
        Verdict::NotEnoughEvidence => vec![
            "Let NVML name the processes on the device: vramshim doctor says whether it does. In a container that takes \
             the host's process ids (--pid=host)"
                .to_owned(),
        ],
        Verdict::Guard => vec![format!(
            "Look at the numbers that this size was computed from. If the request is meant, raise {}",
            failure.shortage.guard_variable()
        )],
        Verdict::LargerThanDevice => {
            let look = "Look at the numbers that this size was computed from";
            // With lost events it is not known what the process holds.
            vec![match shortage.parts {
                Some(parts) => format!("{look}. Beside what is held, {} MiB fit on the device", count(parts.free >> 20)),
                None => look.to_owned(),
            }]
        }
        Verdict::LiveSet => vec![hold_less(lacking.unwrap_or(shortage.requested))],
        Verdict::Layer => vec![lacking.map_or_else(
            || "Find out in the layer's own settings and log what it allows this job: its figures do not show it".to_owned(),
            hold_less,
        )],
        // A leak fills a larger device too.
        Verdict::Growth => vec![name_growers(job)],
        Verdict::OtherProcesses => vec![others_hold(
            job,
            failure.scene,
            others.collect(),
            lacking.unwrap_or(shortage.requested),
            ["this device", "give this job another device that has room"],
        )],
        Verdict::Limit | Verdict::GroupLimit => vec![raise_or_share(job, failure)],
        Verdict::Driver if shortage.of_host => vec![
            "Look at the host's memory: free -g, memory.max of the control group, ulimit -l and -v; dmesg".to_owned(),
        ],
        Verdict::Driver if DriverError(shortage.result).is_fault() => vec![
            "Run the job under compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1, to find the kernel that faulted. If \
             dmesg has NVRM or Xid lines of that time, look at the device"
                .to_owned(),
        ],
        Verdict::Driver => vec![
            "Look for the driver's own message: dmesg (NVRM, Xid), nvidia-smi -q; vramshim doctor examines the driver"
                .to_owned(),
        ],
    }
}

/// Other devices of the job on which there was room when they were measured last, as an alternative to what follows.
fn with_room(job: &Job, failure: &Failure) -> String {
    let had = |(device, _, ledger): (i16, _, Option<&DeviceLedger>)| {
        let free = ledger?.measurements.last()?.0.driver?.free;
        let has_room = device != failure.scene.device && free >= failure.shortage.requested;
        has_room.then(|| {
            format!(
                "device {device}, which had {} free when it was measured last, ",
                size(free)
            )
        })
    };
    let named: String = job.devices().into_iter().filter_map(had).collect();
    match named.is_empty() {
        true => "another device that has room (vramshim top shows what is free), ".to_owned(),
        false => named,
    }
}

/// Who else holds the device or the limit (`what`), and which of them would have to end, the largest first, for the `lacking`
/// bytes.
fn others_hold(job: &Job, at: &Scene, mut others: Vec<&ProcessBytes>, lacking: u64, words: [&str; 2]) -> String {
    let [what, or] = words;
    others.sort_by_key(|process| Reverse(process.bytes));
    let bytes = |process: &ProcessBytes| process.bytes.map_or("an unknown number of bytes".to_owned(), size);
    let name = |process: &ProcessBytes| match process.pid {
        0 => format!("{} of the host", process.host_pid),
        _ => process_name(process),
    };
    let Some(largest) = others.first() else {
        return "Find out with nvidia-smi which other processes use this device, or give this job another device that has room"
            .to_owned();
    };
    let (held, all) = (bytes(largest), others.len());
    let beside = neighbour(job, largest.pid);
    let beside = beside.as_ref();
    let trim = beside.and_then(|beside| trim(job, at, beside)).unwrap_or_default();
    let has_ended = beside.is_some_and(|beside| matches!(beside.state, State::Exited(_) | State::Killed));
    if let Some(beside) = beside.filter(|beside| beside.header.job == job.header.job) {
        let largest = of_this_job(largest, &beside.header);
        return format!(
            "{largest} and holds {held} of {what}{trim}. Let each of {} hold less, or {or}",
            all + 1
        );
    }
    if all == 1 || largest.bytes >= Some(lacking) {
        let largest = name(largest);
        if has_ended {
            return format!("{largest} held {held} of {what} and has ended since: try again, or {or}");
        }
        return format!(
            "Find out whose process {largest} is, which holds {held} of {what}{trim}. End that process, or {or}"
        );
    }
    let named = others.iter().take(MOST_NAMED);
    let named: Vec<String> = named.map(|one| format!("{} with {}", name(one), bytes(one))).collect();
    let mut freed = 0u64;
    let enough = others.iter().position(|process| {
        freed = freed.saturating_add(process.bytes.unwrap_or(0));
        freed >= lacking
    });
    let end = match enough {
        Some(last) => format!(
            "No single one is enough: the {} largest free {}. End those",
            last + 1,
            size(freed)
        ),
        None => "Whether their end is enough is not known. End them".to_owned(),
    };
    format!(
        "Find out whose the {all} processes are that hold {what}: {}. {end}, or {or}",
        named.join(", ")
    )
}

/// How another process gives back what its pools hold in segments without a live block, if it runs and holds any.
fn trim(job: &Job, scene: &Scene, other: &Job) -> Option<String> {
    let uuid = job.header.device(scene.device)?.uuid;
    let is_it = |entry: &Device| entry.uuid == uuid && other.state == State::Running;
    let mut devices = other.devices().into_iter();
    let (device, _, ledger) = devices.find(|(_, entry, _)| entry.is_some_and(is_it))?;
    let (pid, unused) = (other.header.pid, ledger?.space.unused());
    let go_back = format!("go back by vramshim ctl {pid} trim --device {device}");
    (unused > 0).then(|| format!("; {} of it lie free now and {go_back}", size(unused)))
}

/// What helps against a limit: if other members of its group hold the most, they are named.
fn raise_or_share(job: &Job, failure: &Failure) -> String {
    let shortage = &failure.shortage;
    if let Some(short) = shortage.short_of().map(enough) {
        return format!("Hold {short} less before this request, or use a device with more free memory");
    }
    let Some(allowance) = shortage.allowance else {
        return format!("Raise the limit ({}), or hold less", setting_of_limit(job, failure));
    };
    let members = failure.scene.processes.iter();
    let members = members.filter(|process| process.told_by == Teller::Account && process.pid != job.header.pid);
    let members: Vec<&ProcessBytes> = members.filter(|process| process.pid > 0).collect();
    // Without the other members the request would have fit.
    let is_for_members = shortage.requested <= allowance.room().saturating_add(allowance.of_members());
    if allowance.group && is_for_members && !members.is_empty() {
        let missing = allowance.missing(shortage.requested);
        let words = ["the group's limit", "raise the limit"];
        return others_hold(job, failure.scene, members, missing, words);
    }
    match allowance.missing(shortage.requested) {
        _ if allowance.limit == 0 => {
            "Look at the job's first messages: they say which account cannot be used, and why".to_owned()
        }
        0 => {
            "Start the job again: when the limit was read after the refusal, there was room for this request".to_owned()
        }
        missing => {
            let needs = allowance.used.saturating_add(shortage.requested).div_ceil(1 << 20);
            let (missing, layer) = (enough(missing), shortage.layer_words());
            if shortage.inherited {
                return format!("Raise the limit of {layer} to at least {needs}MiB, or hold {missing} less");
            }
            let own = match shortage.needs_larger_layer() {
                true => format!(", and that of {layer}"),
                false => String::new(),
            };
            let setting = setting_of_limit(job, failure);
            format!("Raise the limit to at least {needs}MiB ({setting}){own}, or hold {missing} less")
        }
    }
}

/// Where the limit of the device can be raised.
fn setting_of_limit(job: &Job, failure: &Failure) -> &'static str {
    match job.header.device(failure.scene.device) {
        Some(device) if device.limit_source == LimitSource::Operator => "the annotation vramshim.io/limit of the pod",
        _ => "VRAMSHIM_MEMORY_LIMIT or run --limit",
    }
}

/// A process of this job, with its rank if it has one.
fn of_this_job(process: &ProcessBytes, header: &Header) -> String {
    let name = process_name(process);
    match rank(header) {
        Some(rank) => format!("Process {name} is rank {} of this job", printable(&rank, 16)),
        None => format!("Process {name} belongs to this job"),
    }
}

/// Where the missing file of PyTorch's tensors can be.
fn find_tensors(job: &Job) -> Option<String> {
    let file = TensorFile::beside(&job.path);
    job.lacks_tensors.then(|| {
        format!(
            "Copy {} from where the job wrote it, beside the journal",
            shown(Path::new(file.file_name().unwrap_or_default()))
        )
    })
}

/// How no event is lost the next time.
fn have_all_events(job: &Job) -> String {
    match (job.lost_from_ns(), job.header.lost_errno) {
        (None, _) => "Copy the whole journal again from where the job wrote it, or read it there".to_owned(),
        (Some(_), 0) => "Run the job with a larger VRAMSHIM_JOURNAL_MAX".to_owned(),
        (Some(_), _) => format!(
            "Let the job write its journal into a folder with enough room, which VRAMSHIM_DIR names: {}",
            job.lost_because()
        ),
    }
}

fn name_growers(job: &Job) -> String {
    let path = shown(&job.path);
    format!("vramshim inspect --leaks --growth {path} names what is kept from step to step")
}

fn without_failure(job: &Job, finding: &Finding) -> Vec<Step> {
    let mut next: Vec<String> = Vec::new();
    if finding.verdict == Verdict::NotEnoughEvidence {
        next.push(have_all_events(job));
    }
    if finding.refused_by_torch.is_some() {
        next.push(
            "Raise the fraction that the job gives to torch.cuda.set_per_process_memory_fraction, or hold less before \
             this request"
                .to_owned(),
        );
    }
    if finding.verdict == Verdict::NoneFailed && job.growth().is_some() {
        next.push(name_growers(job));
    }
    if job.state != State::Exited(0) {
        next.extend(find_tensors(job));
    }
    if job.state == State::Killed {
        next.push(
            "Look for the end of the process: dmesg (out of memory of the host, segfault), core files, the scheduler's \
             log"
                .to_owned(),
        );
    }
    if job.ledger.events == 0 && job.damaged == 0 && job.cut_off == 0 {
        next.push("The process asked for no GPU memory under the library".to_owned());
    }
    next.into_iter().map(Step::from).collect()
}
