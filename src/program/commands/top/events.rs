//! Failures and marks, for people and as JSON.

use serde_json::{Value, json};

use super::machine::Event;
use crate::analysis::names::{api_name, mark_name, result_name};
use crate::analysis::watch::What;
use crate::render::format::{printable, size, time};

const OUT_OF_MEMORY: i32 = base::cuda::DriverError::OUT_OF_MEMORY.0;

/// A line of text: when, which process, what.
pub fn line(event: &Event) -> String {
    let what = match &event.happening.what {
        What::Failed(failed) => {
            let file = failed.file.as_deref().map(|file| printable(file, 80));
            let why = match (failed.over_limit, failed.result, failed.refusal) {
                (true, ..) => "over the limit".to_owned(),
                (false, OUT_OF_MEMORY, None) => "out of memory".to_owned(),
                (false, OUT_OF_MEMORY, Some(by)) => {
                    format!("out of memory, refused by {}", by.words(file.as_deref()))
                }
                (false, result, _) => result_name(result),
            };
            let (size, api) = (size(failed.requested), api_name(failed.api.number()));
            format!("device {}: {api} of {size}: {why}", failed.device)
        }
        What::Mark { text, kind, .. } => {
            let text = printable(text.as_deref().unwrap_or("(without text)"), 80);
            format!("{}: {text}", mark_name(*kind))
        }
    };
    let at = clock(event.happening.at_ns);
    format!("{at}  {}  {}  {what}", event.pid, printable(&event.job, 24))
}

/// The time of a day (UTC), of nanoseconds after 1970.
fn clock(ns: u64) -> String {
    let at = time(ns);
    at.split_once('T').map_or(at.as_str(), |(_, clock)| clock).to_owned()
}

/// All events as lines, and whether each is a failure.
pub fn lines<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<(String, bool)> {
    events.map(|event| (line(event), !event.happening.is_mark())).collect()
}

/// So many of these lines: the latest failures, then the latest marks, each the oldest first. Marks get at least one line,
/// and what failures leave.
pub fn latest(lines: &[(String, bool)], most: usize) -> impl Iterator<Item = &(String, bool)> {
    let (failures, marks): (Vec<_>, Vec<_>) = lines.iter().partition(|(_, is_failure)| *is_failure);
    let failed = failures.len().min(most.saturating_sub(usize::from(!marks.is_empty())));
    let before = [failures.len() - failed, marks.len().saturating_sub(most - failed)];
    let last = |all: Vec<_>, before| all.into_iter().skip(before);
    last(failures, before[0]).chain(last(marks, before[1]))
}

pub fn as_json(event: &Event) -> Value {
    let mut told = match &event.happening.what {
        What::Failed(failed) => json!({
            "kind": "failure",
            "device": failed.device,
            "api": api_name(failed.api.number()),
            "requested": failed.requested,
            "result": result_name(failed.result),
            "over_limit": failed.over_limit,
            "refused_by": failed.refusal.map(|refusal| json!({
                "by": refusal.by.name(),
                "file": failed.file,
                "result": refusal.result,
            })),
        }),
        What::Mark { text, kind, .. } => json!({
            "kind": mark_name(*kind),
            "text": text,
        }),
    };
    told["time_unix_ns"] = event.happening.at_ns.into();
    told["pid"] = event.pid.into();
    told["job"] = event.job.as_str().into();
    told
}
