//! What to do next, as it follows from a verdict.

use std::path::Path;

use base::cuda::DriverError;
use journal::format::{LimitSource, ProcessBytes, Teller};
use journal::reader::{Header, State, TensorFile};

use super::format::{printable, shown, size};
use super::verdict_lines::process_name;
use crate::analysis::finding::{Failure, Verdict};
use crate::analysis::job::Job;
use crate::analysis::rank::rank;
use crate::analysis::siblings::sibling;
use crate::analysis::tensor_records::Tensors;

/// The strategy that serves a request from memory in several pieces.
const AUTO_GROWTH: &str = "auto_growth";

/// After a failure, the most promising first. `replayed` says what a replay of the job's requests found.
pub fn after(job: &Job, failure: &Failure, replayed: Option<String>) -> Vec<String> {
    let verdict = failure.shortage.verdict();
    let mut next = first(job, failure);
    next.extend(find_tensors(job));
    next.extend(replayed);
    if matches!(verdict, Verdict::LiveSet | Verdict::Unusable) {
        next.extend(
            job.cache_owner()
                .and_then(|framework| without_cache(job, framework, failure)),
        );
    }
    if next.is_empty() && verdict == Verdict::Unusable {
        next.push(usable(job, failure));
    }
    next
}

/// How the job does without its framework's cache, unless the cache is known to have held nothing.
fn without_cache(job: &Job, framework: &str, failure: &Failure) -> Option<String> {
    if !failure.knows_cache {
        return Some(format!(
            "Run once with --torch record to see what {framework}'s cache holds, or with --torch allocator to do without \
             it"
        ));
    }
    let cached = failure.shortage.parts.map_or(0, |parts| parts.cached);
    if failure.shortage.private > 0 {
        return Some(
            "End graphs or pools that are not needed before this request, or let graphs share a pool \
             (torch.cuda.graph(pool=...)). May help, not tried"
                .to_owned(),
        );
    }
    let is_set = job.tensors.as_ref().is_some_and(Tensors::are_expandable);
    let or_expandable = match is_set {
        true => "",
        false => "; or let its segments grow: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    };
    // What is cached must be enough.
    (cached > 0 && failure.shortage.short_of().is_none_or(|short| cached >= short)).then(|| {
        format!(
            "Run with --torch allocator: {framework} then keeps no cache, and a strategy serves each tensor{or_expandable}"
        )
    })
}

/// What makes free memory usable, if neither a replay nor a framework's cache says more.
fn usable(job: &Job, failure: &Failure) -> String {
    if failure.shortage.largest_cached >= failure.shortage.requested {
        "Wait for the work that may still use the free block before this request, or make the request on the stream that \
         freed the block"
            .to_owned()
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
    let others = processes.filter(|process| process.pid != job.header.pid);
    let largest = others.max_by_key(|process| process.bytes);
    let bytes = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
    let lacking = shortage.short_of().filter(|lacking| *lacking > 0);
    let hold_less = |lacking: u64| {
        let needs = size(parts.total.saturating_add(lacking));
        let instead = match (parts.of_layer, needs == size(parts.total)) {
            (true, _) if shortage.device_is_full() => "use a device with more free memory".to_owned(),
            (true, _) => format!("let {} give as much more", shortage.layer_words()),
            (false, true) => "use a larger device".to_owned(),
            (false, false) => format!("use a device of at least {needs}"),
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
        Verdict::LargerThanDevice => {
            let look = "Look at the numbers that this size was computed from";
            // With lost events it is not known what the process holds.
            vec![match shortage.parts {
                Some(parts) => format!(
                    "{look}. Beside what this process holds, {} fit on the device",
                    size(parts.total.saturating_sub(parts.own()))
                ),
                None => look.to_owned(),
            }]
        }
        Verdict::LiveSet => vec![hold_less(lacking.unwrap_or(shortage.requested))],
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
        Verdict::OtherProcesses => vec![match largest.map(|process| (process, sibling(job, process.pid))) {
            Some((process, Some(header))) => format!(
                "{} and holds {} of this device. Give each process a device of its own, for example with \
                 CUDA_VISIBLE_DEVICES, or let both hold less",
                of_this_job(process, &header),
                bytes(process.bytes)
            ),
            Some((process, None)) if process.pid == 0 => format!(
                "Find out on the host whose process {} is, which holds {} of this device. End that process, or give this \
                 job another device",
                process.host_pid,
                bytes(process.bytes)
            ),
            Some((process, None)) => format!(
                "Find out whose process {} is, which holds {} of this device. End that process, or give this job \
                 another device",
                process_name(process),
                bytes(process.bytes)
            ),
            None => "Find out with nvidia-smi which other processes use this device, or give this job another device".to_owned(),
        }],
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

/// What helps against a limit: if other members of its group hold the most, they are named.
fn raise_or_share(job: &Job, failure: &Failure) -> String {
    let shortage = &failure.shortage;
    if let Some(short) = shortage.short_of().map(size) {
        return format!("Hold {short} less before this request, or use a device with more free memory");
    }
    let Some(allowance) = shortage.allowance else {
        return format!("Raise the limit ({}), or hold less", setting_of_limit(job, failure));
    };
    let members = failure.scene.processes.iter();
    let largest = members
        .filter(|process| process.told_by == Teller::Account && process.pid != job.header.pid)
        .max_by_key(|process| process.bytes);
    // Without the other members the request would have fit.
    let is_for_members = shortage.requested <= allowance.room().saturating_add(allowance.of_members());
    if let Some(process) = largest.filter(|process| process.pid > 0 && allowance.group && is_for_members) {
        let held = process.bytes.map_or("unknown".to_owned(), size);
        return match sibling(job, process.pid) {
            Some(header) => format!(
                "{} and holds {held} of the group's limit. Let both hold less, or raise the limit",
                of_this_job(process, &header)
            ),
            None => format!(
                "Find out whose process {} is, which holds {held} of the group's limit. End that process, or raise the \
                 limit",
                process_name(process)
            ),
        };
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
            let (missing, layer) = (size(missing), shortage.layer_words());
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

pub fn without_failure(job: &Job) -> Vec<String> {
    let mut next = Vec::new();
    let finding = job.finding();
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
    next
}
