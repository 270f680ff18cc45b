//! What to do next, as it follows from a verdict.

use base::cuda::DriverError;
use journal::format::ProcessBytes;
use journal::reader::{Header, State};

use super::format::{printable, shown, size};
use super::verdict::process_name;
use crate::analysis::job::Job;
use crate::analysis::rank::rank;
use crate::analysis::siblings::sibling;
use crate::analysis::verdict::{Failure, Verdict};

/// After a failure, the most promising first. `replayed` says what a replay of the job's requests found.
pub fn after(job: &Job, failure: &Failure, replayed: Option<String>) -> Vec<String> {
    let verdict = failure.shortage.verdict();
    let mut next = first(job, failure);
    next.extend(replayed);
    if let Some(framework) = job.caches()
        && matches!(verdict, Verdict::LiveSet | Verdict::Unusable)
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

fn first(job: &Job, failure: &Failure) -> Vec<String> {
    let shortage = &failure.shortage;
    let parts = shortage.parts.unwrap_or_default();
    let processes = failure.scene.processes.iter();
    let others = processes.filter(|process| process.pid != job.header.pid);
    let largest = others.max_by_key(|process| process.bytes);
    let bytes = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
    let lacking = shortage.short_of().filter(|lacking| *lacking > 0);
    let hold_less = |lacking: u64| {
        let needs = size(parts.total.saturating_add(lacking));
        // What is called total there may be the limit of a layer.
        let instead = match (job.header.layer(), needs == size(parts.total)) {
            (Some(_), true) => "raise the layer's limit, or use a larger device".to_owned(),
            (Some(_), false) => format!("let the layer give at least {needs}, or use a device that has as much"),
            (None, true) => "use a larger device".to_owned(),
            (None, false) => format!("use a device of at least {needs}"),
        };
        format!("Hold {} less before this request, or {instead}", size(lacking))
    };
    match shortage.verdict() {
        Verdict::NoneFailed | Verdict::Unusable => Vec::new(),
        Verdict::NotEnoughEvidence if shortage.lost_before > 0 => {
            vec![have_all_events(job)]
        }
        Verdict::NotEnoughEvidence if job.is_imported() => vec![
            "An imported trace has no figures of the device. Run the job with vramshim run to have a verdict".to_owned(),
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
        Verdict::LargerThanDevice => vec![format!(
            "Look at the numbers that this size was computed from. Beside what this process holds, {} fit on the device",
            size(parts.total.saturating_sub(parts.own()))
        )],
        Verdict::LiveSet => lacking.map(hold_less).into_iter().collect(),
        Verdict::Layer => vec![lacking.map_or_else(
            || "Find out in the layer's own settings and log what it allows this job: its figures do not show it".to_owned(),
            hold_less,
        )],
        // A leak fills a larger device too.
        Verdict::Growth => {
            vec![format!(
                "vramshim inspect --leaks --growth {} names what is kept from step to step",
                shown(&job.path)
            )]
        }
        Verdict::OtherProcesses => largest
            .map(|process| match sibling(job, process.pid) {
                Some(header) => format!(
                    "{} and holds {} of this device. Give each process a device of its own, for example with \
                     CUDA_VISIBLE_DEVICES, or let both hold less",
                    of_this_job(process, &header),
                    bytes(process.bytes)
                ),
                None => format!(
                    "Find out whose process {} is, which holds {} of this device. End that process, or give this job \
                     another device",
                    process_name(process),
                    bytes(process.bytes)
                ),
            })
            .into_iter()
            .collect(),
        Verdict::Limit | Verdict::GroupLimit => {
            if let Some(process) = largest.filter(|_| shortage.verdict() == Verdict::GroupLimit) {
                let held = bytes(process.bytes);
                vec![match sibling(job, process.pid) {
                    Some(header) => format!(
                        "{} and holds {held} of the group's limit. Let both hold less, or raise the limit",
                        of_this_job(process, &header)
                    ),
                    None => format!(
                        "Find out whose process {} is, which holds {held} of the group's limit. End that process, or \
                         raise the limit",
                        process_name(process)
                    ),
                }]
            } else if let Some(allowance) = shortage.allowance {
                vec![format!(
                    "Raise the limit to at least {}MiB (VRAMSHIM_MEMORY_LIMIT or run --limit), or hold {} less",
                    allowance.used.saturating_add(shortage.requested).div_ceil(1 << 20),
                    size(shortage.requested.saturating_sub(allowance.room()))
                )]
            } else {
                Vec::new()
            }
        }
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

/// A process of this job, with its rank if it has one.
fn of_this_job(process: &ProcessBytes, header: &Header) -> String {
    let name = process_name(process);
    match rank(header) {
        Some(rank) => format!("Process {name} is rank {} of this job", printable(&rank, 16)),
        None => format!("Process {name} belongs to this job"),
    }
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

pub fn without_failure(job: &Job) -> Vec<String> {
    let mut next = Vec::new();
    if job.finding().verdict == Verdict::NotEnoughEvidence {
        next.push(have_all_events(job));
    }
    if job.state == State::Killed {
        next.push(
            "Look for the end of the process: dmesg (out of memory of the host, segfault), core files, the scheduler's \
             log"
                .to_owned(),
        );
    }
    if job.ledger.events == 0 {
        next.push("The process asked for no GPU memory under the library".to_owned());
    }
    next
}
