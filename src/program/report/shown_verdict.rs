//! The answer about a process as the page shows it.

use serde_json::{Value, json};

use crate::analysis::finding::Verdict;
use crate::analysis::names::api_name;
use crate::render::answer::Answer;

/// `stack` gives the place of a stack. A report is made without a replay.
pub fn shown_verdict(answer: &Answer, stack: &mut impl FnMut(u32) -> Option<usize>) -> Value {
    let failure = answer.finding.failure.as_ref();
    let [explanation, sentence] = answer.text();
    json!({
        "name": answer.finding.verdict.name(),
        "words": answer.finding.verdict.words(),
        // What happened.
        "sentence": sentence,
        // The causes, and what would help, with bytes.
        "explanation": explanation,
        "next": answer.steps_as_json(),
        // Whether the failure is what ended the job.
        "fatal": answer.finding.fatal,
        "device": failure.map(|failure| failure.scene.device),
        "time_ns": failure.map(|failure| failure.scene.time_ns),
        // Of growth: from when to when the bytes came.
        "window": failure
            .filter(|_| answer.finding.verdict == Verdict::Growth)
            .and_then(|failure| failure.scene.around.growth),
        // What the request asked for, by which function, and from where.
        "api": failure.map(|failure| api_name(failure.scene.api)),
        "requested": failure.map(|failure| failure.scene.requested),
        "stack": failure.and_then(|failure| stack(failure.scene.stack)),
        "parts": answer.parts,
        "total": failure.and_then(|failure| Some(failure.shortage.parts?.total)),
    })
}
