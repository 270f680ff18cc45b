//! The verdict of a process as the page shows it.

use journal::format::{ProcessBytes, Teller};

use super::data::{Part, Verdict};
use crate::analysis::finding::{self, Failure, Parts};
use crate::analysis::job::Job;
use crate::analysis::names::api_name;
use crate::render;
use crate::render::format::size;
use crate::render::next_step;
use crate::render::verdict_lines::{Line, process_name};

/// The last failure, or that there was none. `stack` has the time and the place of the stack of the last failed call.
pub fn shown_verdict(job: &Job, stack: Option<(u64, usize)>) -> Verdict {
    let finding = job.finding();
    let lines = render::verdict_lines::verdict(job).unwrap_or_default();
    let (mut explanation, mut sentence) = (None, Vec::new());
    for line in lines {
        match line {
            Line::Explanation(text) => explanation = Some(text),
            Line::Other(text) => sentence.push(text),
        }
    }
    let failure = finding.failure.as_ref();
    let parts = failure.and_then(|failure| failure.shortage.parts);
    Verdict {
        name: finding.verdict.name(),
        words: finding.verdict.words(),
        sentence: if sentence.is_empty() {
            "The job used no device.".to_owned()
        } else {
            sentence.join(". ")
        },
        explanation: explanation.unwrap_or_default(),
        next: match failure {
            Some(failure) => next_step::after(job, failure, replay(job, failure)),
            None => next_step::without_failure(job),
        }
        .iter()
        .map(ToString::to_string)
        .collect(),
        equation: failure.and_then(|failure| failure.shortage.equation()),
        fatal: finding.fatal,
        device: failure.map(|failure| failure.scene.device),
        time_ns: failure.map(|failure| failure.scene.time_ns),
        api: failure.map(|failure| api_name(failure.scene.api)),
        requested: failure.map(|failure| failure.scene.requested),
        stack: stack
            .filter(|&(time_ns, _)| failure.is_some_and(|failure| failure.scene.time_ns == time_ns))
            .map(|(_, stack)| stack),
        total: parts.map(|parts| parts.total),
        parts: parts
            .zip(failure)
            .map(|(parts, failure)| list(&parts, failure, job.header.pid))
            .unwrap_or_default(),
    }
}

/// Who is told that free memory cannot be used asks what would use it. A report is made without a replay.
fn replay(job: &Job, failure: &Failure) -> Option<String> {
    let asks = failure.shortage.verdict() == finding::Verdict::Unusable && job.caches().is_none();
    asks.then(|| "vramshim why replays the requests, and says whether another strategy serves them".to_owned())
}

fn list(parts: &Parts, failure: &Failure, pid: u32) -> Vec<Part> {
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let part = |name, bytes| Part {
        name,
        bytes,
        note: None,
    };
    let mut list = vec![
        part("live", bytes(parts.live)),
        part("free inside reserved", bytes(parts.cached)),
    ];
    list.extend((!parts.lacks_context()).then(|| part("context", bytes(parts.context))));
    if let Some(others) = parts.others {
        let name = |process: &ProcessBytes| match process.bytes {
            Some(bytes) => format!("{}: {}", process_name(process), size(bytes)),
            None => process_name(process),
        };
        let who: Vec<String> = failure
            .scene
            .processes
            .iter()
            // The account may tell the same processes once more.
            .filter(|process| process.pid != pid && process.told_by == Teller::Nvml)
            .map(name)
            .collect();
        list.push(Part {
            note: (!who.is_empty()).then(|| who.join(", ")),
            ..part("other processes", bytes(others))
        });
    }
    list.extend((parts.unknown != 0).then(|| part(parts.unknown_words(), parts.unknown)));
    list.push(part("free", bytes(parts.free)));
    list
}
