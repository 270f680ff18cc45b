//! What is known of a job in one value: why its last request failed or how far it stayed from its limit, the device's bytes then,
//! who held them, and what to do next. `why`, `inspect` and `report` print this value, as text, JSON and HTML.

use journal::format::{MemInfo, ProcessBytes, Teller};
use serde::Serialize;
use serde_json::{Value, json};

use super::format::{amount_json, job_ended};
use super::next_step::{CameAgain, Replayed, Step, steps};
use super::verdict_lines::{self, Line, mig_instance, process_name};
use crate::analysis::finding::{Failure, Finding};
use crate::analysis::job::Job;
use crate::analysis::names::{api_name, failed_with};

pub struct Answer<'a> {
    pub job: &'a Job,
    pub finding: Finding<'a>,
    /// The cause in words.
    pub lines: Vec<Line>,
    /// The device's bytes at the failure. They sum to the device.
    pub parts: Vec<Part>,
    pub holders: Holders,
    /// What to do, the most promising first.
    pub next: Vec<Step>,
    /// `None` if no replay would tell more, or none was made.
    pub replay: Option<Replayed>,
}

/// A part of the device's memory. What is not told apart is one part, so what is told is exact.
#[derive(Debug, Serialize)]
pub struct Part {
    pub name: &'static str,
    /// Negative if more bytes are known than used.
    pub bytes: i64,
    /// Who has it, if it is not this process or nobody.
    #[serde(rename = "note")]
    pub who: Option<String>,
}

/// Who held the most at one moment.
#[derive(Default)]
pub struct Holders {
    /// The moment, in words.
    pub moment: String,
    /// The first of them, most bytes first.
    pub list: Vec<Holder>,
    pub in_all: usize,
    /// The code that asked for what failed, if its stack is known.
    pub asked_by: Option<String>,
    /// Those that came again and again until then, and stayed; `None` if nobody looked.
    pub came_again: Option<CameAgain>,
}

/// Live allocations that have something in common.
#[derive(Serialize)]
pub struct Holder {
    pub what: String,
    pub bytes: u64,
    pub count: u64,
    pub oldest_ns: u64,
}

impl<'a> Answer<'a> {
    /// `replay`: what a replay of the job's requests found, or `Err` if none was made.
    pub fn new(job: &'a Job, holders: Holders, replay: Result<Option<Replayed>, ()>) -> Answer<'a> {
        let finding = job.finding();
        let mut next = steps(job, &finding, &replay);
        let leak = holders
            .came_again
            .as_ref()
            .and_then(|came| Step::for_leak(job, &finding, came));
        if let Some((step, is_most)) = leak {
            let place = if is_most { 0 } else { next.len() };
            next.insert(place, step);
        }
        Answer {
            lines: verdict_lines::verdict(job),
            parts: finding
                .failure
                .as_ref()
                .map_or(Vec::new(), |failure| parts(job, failure)),
            next,
            replay: replay.ok().flatten(),
            job,
            finding,
            holders,
        }
    }

    /// Without holders and replay.
    pub fn in_short(job: &'a Job) -> Answer<'a> {
        Answer::new(job, Holders::default(), Err(()))
    }

    /// The lines that say the cause, and those that say what happened.
    pub fn text(&self) -> [String; 2] {
        let lines = self.lines.iter();
        let (causes, others): (Vec<&Line>, Vec<&Line>) = lines.partition(|line| matches!(line, Line::Explanation(_)));
        let text = |line: &&Line| match line {
            Line::Explanation(text) | Line::Other(text) => text.clone(),
        };
        [causes, others].map(|lines| lines.iter().map(text).collect::<Vec<_>>().join(". "))
    }

    pub fn as_json(&self) -> Value {
        let Answer { job, finding, .. } = self;
        let mut page = json!({
            "verdict": finding.verdict.name(),
            "text": verdict_lines::text_of(&self.lines),
            "fatal": finding.fatal,
            "uncertain": finding.uncertain,
            "ended": job_ended(job),
            "distance": finding.distance,
        });
        if let Some(distance) = finding.distance {
            let ledger = job.ledger.devices.get(&distance.device);
            if ledger.is_some_and(|ledger| !job.knows_reserved(ledger)) {
                page["distance"]["peak_reserved"] = Value::Null;
            }
            page["distance"]["left"] = json!(distance.room.map(|room| room.saturating_sub(distance.peak)));
        }
        let Some(failure) = &finding.failure else {
            page["growth"] = json!(job.growth().map(|(_, growth)| growth));
            return page;
        };
        let (scene, shortage) = (failure.scene, &failure.shortage);
        page["failure"] = json!({
            "api": api_name(scene.api),
            "device": scene.device,
            "requested": scene.requested,
            "asked_by": self.holders.asked_by,
            "code": scene.result,
            "result": failed_with(scene.api, scene.result),
            "refused_by_limit": scene.by_limit,
            "refused_by": self.refused_by(failure),
            "guard": scene.guard.map(|guard| json!({ "bytes": guard.bytes, "of_device": guard.of_device })),
            "of_host": scene.of_host,
            "time_ns": scene.time_ns,
            "tries": scene.tries,
            "allocations_after": scene.went_on,
            "frees_after": scene.freed,
            "largest_cached_block": shortage.largest_cached,
            // What the device had free, if only PyTorch told it.
            "device_free": shortage.told.map(|told| told.free),
        });
        page["ledger"] = json!(shortage.parts.map(|parts| {
            // How much of the framework's cache is in use is not known.
            let split = |bytes: u64| failure.knows_cache().then_some(bytes);
            json!({
                "total": parts.total,
                "told_by": if parts.of_layer { "layer" } else { "driver" },
                "live": split(parts.live),
                "cached": split(parts.cached),
                "live_or_cached": parts.live.saturating_add(parts.cached),
                "context": parts.context,
                "others": parts.others,
                "unknown": parts.unknown,
                "free": parts.free,
            })
        }));
        page["mig_instance"] = json!(mig_instance(job, failure).map(|device| json!({
            "name": device.name,
            "total": device.total_memory,
        })));
        page["limit"] = json!(shortage.allowance.map(|allowance| json!({
            "limit": allowance.limit,
            "used": allowance.used,
            "own": allowance.own,
            "group": allowance.group,
        })));
        page["growth"] = json!(scene.around.growth);
        let process = |process: &ProcessBytes| {
            json!({
                "pid": Some(process.pid).filter(|&pid| pid > 0),
                "host_pid": Some(process.host_pid).filter(|&pid| pid > 0),
                "bytes": process.bytes,
                "name": process.name.text(),
                "known_from": match process.told_by {
                    Teller::Nvml => "nvml",
                    Teller::Account => "account",
                    _ => "not_known",
                },
            })
        };
        page["processes"] = scene.processes.iter().map(process).collect();
        page
    }

    /// Who refused the request; null if that is not known.
    fn refused_by(&self, failure: &Failure) -> Value {
        let (scene, refusal) = (failure.scene, failure.scene.refusal());
        let by = match refusal {
            _ if scene.guard.is_some() => "guard",
            _ if scene.by_limit && failure.shortage.is_of_group() => "group_limit",
            _ if scene.by_limit => "limit",
            Some(refusal) => refusal.by.name(),
            None => return Value::Null,
        };
        let memory = |memory: MemInfo| json!({ "total": memory.total, "free": memory.free });
        json!({
            "by": by,
            "file": refusal.and_then(|refusal| self.job.header.file_of(refusal.by)),
            "result": refusal.and_then(|refusal| refusal.result),
            "shown": scene.shown().map(memory),
            "driver": failure.shortage.refusal.and_then(|refusal| refusal.driver).map(memory),
        })
    }

    pub fn steps_as_json(&self) -> Value {
        let step = |step: &Step| json!({ "what": step.what, "effect": step.effect, "gains": amount_json(step.gains) });
        self.next.iter().map(step).collect()
    }
}

fn parts(job: &Job, failure: &Failure) -> Vec<Part> {
    let Some(parts) = failure.shortage.parts else {
        return Vec::new();
    };
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let part = |name, bytes| Part { name, bytes, who: None };
    let mut list = match failure.knows_cache() {
        true => vec![part("live", bytes(parts.live)), part("cached", bytes(parts.cached))],
        false => vec![part("live or cached", bytes(parts.live.saturating_add(parts.cached)))],
    };
    // A context that neither NVML nor a measurement told is in the part of others, below.
    list.extend((!parts.lacks_context()).then(|| part("context", bytes(parts.context))));
    let told = failure.scene.processes.iter().filter(|_| parts.others.is_some());
    // The account may tell the same processes once more.
    let others = told.filter(|process| process.pid != job.header.pid && process.told_by == Teller::Nvml);
    list.extend(others.filter_map(|process| {
        Some(Part {
            who: Some(process_name(process)),
            ..part("other process", bytes(process.bytes?))
        })
    }));
    list.push(part(parts.unknown_words(), parts.unknown));
    list.push(part("free", bytes(parts.free)));
    list
}
