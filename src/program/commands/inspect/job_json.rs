//! Jobs as JSON: every figure, sizes in bytes, times in nanoseconds, nothing rounded.

use std::io::{self, Write};

use base::cuda::HOST_DEVICE;
use journal::format::NoStack;
use journal::reader::{Header, State};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::views::study::Study;
use crate::analysis::device_ledger::{DeviceLedger, Live, Reclaims, Totals};
use crate::analysis::job::Job;
use crate::analysis::ledger::Ledger;
use crate::analysis::live_set::{Holder, Key};
use crate::analysis::names;
use crate::analysis::names::{api_name, class_name, device_uuid, frame_as_json};
use crate::analysis::origins::FIRST_OF_TORCH;
use crate::escaped;
use crate::render::answer::Answer;
use crate::render::format;
use crate::render::host_memory;

pub fn write(out: &mut impl Write, studies: &[Study]) -> io::Result<()> {
    // Each job is written by itself, so that memory never holds the JSON of several jobs.
    write!(out, "{{\"jobs\":[")?;
    for (place, study) in studies.iter().enumerate() {
        out.write_all(if place == 0 { b"\n" } else { b",\n" })?;
        let mut description = describe(study);
        if let Some(tensors) = study.tensors() {
            description["tensors"] = json!(tensors);
        }
        if study.has_stacks() {
            description["stacks"] = stacks(study);
        }
        let live = &study.job;
        escaped::compact(out, &Whole { description, live })?;
    }
    writeln!(out, "\n]}}")
}

/// Which share of the requested bytes has a stack, why the others have none, and the code that holds what lives at the end.
fn stacks(study: &Study) -> Value {
    let Study { job, uses, labels, .. } = study;
    let stack = |stack: u32| {
        let number = NoStack::stack(stack);
        let from = match number {
            Ok(FIRST_OF_TORCH..) => "PyTorch",
            _ => "journal",
        };
        json!({
            "from": from,
            "no_stack": number.err().map(NoStack::name),
            "frames": labels.frames(stack).unwrap_or_default().iter().map(frame_as_json).collect::<Value>(),
        })
    };
    let holder = |holder: &Holder| {
        let stack = match holder.key {
            Key::Stack(number) => stack(number),
            _ => Value::Null,
        };
        json!({"bytes": holder.requested, "allocations": holder.count, "stack": stack})
    };
    let last = job.ledger.scenes.last_out_of_memory().map(|failure| {
        json!({
            "time_ns": failure.time_ns,
            "device": failure.device,
            "requested": failure.requested,
            "stack": stack(failure.stack),
        })
    });
    let without = uses
        .without
        .iter()
        .map(|(reason, &bytes)| (reason.name().to_owned(), json!(bytes)));
    json!({
        "requested_with_stack": uses.with,
        "requested_with_stack_of_pytorch": uses.of_torch,
        "requested_without_stack": without.collect::<Map<_, _>>(),
        "live": uses.holders.iter().map(holder).collect::<Value>(),
        "last_out_of_memory": last,
    })
}

/// A job's description, and its live allocations. Of a list of many, only one has its JSON in memory.
#[derive(Serialize)]
struct Whole<'j> {
    #[serde(flatten)]
    description: Value,
    #[serde(serialize_with = "live_allocations")]
    live: &'j Job,
}

fn live_allocations<S: Serializer>(job: &&Job, serializer: S) -> Result<S::Ok, S::Error> {
    let live = job.ledger.live();
    serializer.collect_seq(live.iter().map(|live| describe_live(live, job.duration_ns)))
}

/// All of a job but its live allocations (`Whole`).
fn describe(Study { job, labels, .. }: &Study) -> Value {
    let header = &job.header;
    let ledger = &job.ledger;
    let ended = match job.state {
        _ if !format::knows_end(job) => "not_known",
        State::Running => "running",
        State::Dumped => "running_when_copied",
        State::Exited(_) => "exit",
        State::Killed => "without_exit",
    };
    // Of a damaged part nothing is told.
    let of_process = |value: Value| if header.knows_process() { value } else { Value::Null };
    let of_clock = |value: Value| {
        if job.knows_times() {
            of_process(value)
        } else {
            Value::Null
        }
    };
    let environment: serde_json::Map<String, Value> = header
        .environment
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let mut description = json!({
        "pid": header.pid,
        "parent_pid": of_process(json!(header.parent_pid)),
        "host": of_process(json!(header.host)),
        "job": of_process(json!(header.job)),
        "command": of_process(json!(header.command_line.join(" "))),
        "command_line": of_process(json!(header.command_line)),
        "environment": of_process(json!(environment)),
        "strategy": of_process(json!(header.strategy)),
        "ended": ended,
        "start_time": of_clock(json!(format::time(header.wall_start_ns))),
        "start_time_ns": of_clock(json!(header.wall_start_ns)),
        "duration_ns": of_clock(json!(job.duration_ns)),
        // More may have been live than the records tell: between PyTorch's snapshots, or before an imported trace begins.
        "peaks_are_at_least": job.tells_at_least(),
        "path": job.path.to_string_lossy(),
        "events": ledger.events,
        "events_lost": header.knows_lost().then_some(job.lost),
        "unfinished": job.unfinished,
        "damaged": job.damaged,
        "damaged_header": header.damaged,
        "software": software(header),
        "failed_calls": ledger.failed_calls(),
        "anomalies": ledger.anomalies.total(),
        "anomaly_kinds": ledger.anomalies,
        "devices": devices(job),
        "host_memory": host(job),
        "apis": apis(ledger),
        "failed": failed(ledger),
        "surges": ledger.surges.count,
        "largest_surges": host_memory::surges_as_json(&ledger.surges, labels),
        "why": Answer::in_short(job).as_json(),
    });
    if let State::Exited(status) = job.state
        && header.knows_end()
    {
        description["exit_status"] = json!(status);
    }
    if job.lost > 0 {
        description["lost_first_ns"] = json!(job.lost_from_ns());
        description["lost_errno"] = json!(header.lost_errno);
    }
    description
}

fn software(header: &Header) -> Value {
    let named = |wanted: &str| {
        let named = header.software.iter().filter(move |(name, _)| name == wanted);
        named.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    let runtimes = named("runtime");
    json!({
        "frameworks": named("framework"),
        // Several, if it is not known which of them the job uses.
        "runtime": (!runtimes.is_empty()).then(|| runtimes.join(", ")),
        "driver": named("driver").first(),
        "kernel_driver": named("kernel_driver").first(),
        // Files of layers before the driver: behind the library, and in front of it.
        "layer": named("layer").first(),
        "layer_in_front": named("layer_in_front").first(),
    })
}

fn devices(job: &Job) -> Value {
    let empty = DeviceLedger::default();
    job.devices()
        .into_iter()
        .map(|(ordinal, entry, ledger)| {
            let ledger = ledger.unwrap_or(&empty);
            let (free, knows_reserved) = (ledger.free(), job.knows_reserved(ledger));
            let about = json!({
                "device": ordinal,
                "uuid": entry.and_then(|entry| device_uuid(&entry.uuid)),
                "name": entry.map(|entry| entry.name.as_str()),
                "total_memory": entry.map(|entry| entry.total_memory),
                "limit": entry.and_then(|entry| entry.limit),
                "utilisation": ledger.all.utilisation(),
                "fragmentation": knows_reserved.then(|| free.fragmentation()),
                "free_inside": knows_reserved.then_some(free.bytes),
                "largest_free_block": knows_reserved.then_some(free.largest),
                "segments": knows_reserved.then(|| json!({
                    "current": ledger.space.segments(),
                    "obtained": ledger.segments_obtained,
                    "returned": ledger.segments_returned,
                })),
            });
            let mut device = figures(ledger, about);
            if !knows_reserved {
                let classes = device["classes"].as_array_mut().into_iter().flatten();
                classes.for_each(|class| class["reserved"] = Value::Null);
                device["reserved"] = Value::Null;
            }
            if ledger.reclaims != Reclaims::default() {
                device["reclaims"] = json!(ledger.reclaims);
            }
            if ledger.stitches > 0 {
                device["stitches"] = json!(ledger.stitches);
                device["stitched_bytes"] = json!(ledger.stitched);
            }
            device
        })
        .collect()
}

fn host(job: &Job) -> Value {
    let empty = DeviceLedger::default();
    let ledger = job.host_memory().unwrap_or(&empty);
    let about = json!({ "of_process": host_memory::as_json(&job.ledger.host), "device": HOST_DEVICE });
    figures(ledger, about)
}

/// The figures of a device or of the host, and of its classes, beside what is told of it.
fn figures(ledger: &DeviceLedger, about: Value) -> Value {
    let class = |(&class, totals): (&u8, &Totals)| joined(json!(totals), json!({ "class": class_name(class) }));
    let classes: Value = ledger.classes.iter().map(class).collect();
    let figures = joined(
        json!(ledger.all),
        json!({ "failed_calls": ledger.failed_calls, "classes": classes }),
    );
    joined(about, figures)
}

/// The fields of two objects in one.
fn joined(mut one: Value, mut other: Value) -> Value {
    if let (Some(one), Some(other)) = (one.as_object_mut(), other.as_object_mut()) {
        one.append(other);
    }
    one
}

fn apis(ledger: &Ledger) -> Value {
    ledger
        .apis
        .iter()
        .map(|(&api, totals)| joined(json!(totals), json!({ "api": api_name(api) })))
        .collect()
}

fn failed(ledger: &Ledger) -> Value {
    ledger
        .failures
        .iter()
        .map(|(&(api, result), failure)| {
            let what = json!({ "api": api_name(api), "code": result, "result": names::failed_with(api, result) });
            joined(what, json!(failure))
        })
        .collect()
}

fn describe_live(live: &Live, end_ns: u64) -> Value {
    json!({
        "api": api_name(live.api),
        "class": class_name(live.class),
        "size": live.size,
        "allocated": live.allocated,
        "device": live.device,
        // Text, because many JSON readers lose digits of numbers above 2^53.
        "address": format!("{:#x}", live.address),
        "thread": live.tid,
        // Stream 1 is the default stream; other streams are numbered in the order of their first use.
        "stream": (live.stream > 0).then_some(live.stream),
        "time_ns": live.time_ns,
        "age_ns": end_ns.saturating_sub(live.time_ns),
    })
}
