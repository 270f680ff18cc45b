//! Jobs as JSON: every figure, sizes in bytes, times in nanoseconds, nothing rounded.

use std::io::{self, Write};

use base::cuda::HOST_DEVICE;
use journal::reader::{Header, State};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::analysis::device_ledger::{DeviceLedger, Level, Live, Reclaims, Totals};
use crate::analysis::job::Job;
use crate::analysis::labels::Labels;
use crate::analysis::ledger::Ledger;
use crate::analysis::names;
use crate::analysis::names::{api_name, class_name, device_uuid};
use crate::analysis::stack_uses::Uses;
use crate::analysis::tensors::Tensors;
use crate::escaped;
use crate::render::format;
use crate::render::host_memory;
use crate::render::reclaims;
use crate::render::stacks_section;
use crate::render::tensors_section;
use crate::render::verdict_lines;

pub fn write(
    out: &mut impl Write,
    jobs: &[Job],
    recorded: impl Fn(&Job) -> Option<Tensors>,
    stacked: impl Fn(&Job) -> Option<(Uses, Labels)>,
) -> io::Result<()> {
    // Each job is written by itself, so that memory never holds the JSON of several jobs.
    write!(out, "{{\"jobs\":[")?;
    for (place, job) in jobs.iter().enumerate() {
        out.write_all(if place == 0 { b"\n" } else { b",\n" })?;
        let mut description = describe(job);
        if let Some(tensors) = recorded(job) {
            description["tensors"] = tensors_section::as_json(&tensors);
        }
        if let Some((uses, labels)) = stacked(job) {
            description["stacks"] = stacks_section::as_json(&uses, &labels);
        }
        escaped::compact(out, &Whole { description, job })?;
    }
    writeln!(out, "\n]}}")
}

/// The name of the list of live allocations, which `Whole` writes one by one.
const LIVE: &str = "live";

/// A job's description, in which the list of live allocations is empty, and the job. Of a list of many allocations, only
/// one has its JSON in memory.
struct Whole<'j> {
    description: Value,
    job: &'j Job,
}

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.description.as_object().into_iter().flatten();
        serializer.collect_map(fields.map(|(name, value)| {
            let value = match name.as_str() {
                LIVE => Field::Live(self.job),
                _ => Field::Told(value),
            };
            (name, value)
        }))
    }
}

enum Field<'j> {
    Told(&'j Value),
    Live(&'j Job),
}

impl Serialize for Field<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Field::Told(value) => value.serialize(serializer),
            Field::Live(job) => {
                let live = job.ledger.live();
                serializer.collect_seq(live.iter().map(|live| describe_live(live, job.duration_ns)))
            }
        }
    }
}

/// All of a job but its live allocations (`Whole`).
fn describe(job: &Job) -> Value {
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
        "start_time": of_process(json!(format::time(header.wall_start_ns))),
        "start_time_ns": of_process(json!(header.wall_start_ns)),
        "duration_ns": job.duration_ns,
        "path": job.path.to_string_lossy(),
        "events": ledger.events,
        "events_lost": header.knows_lost().then_some(job.lost),
        "unfinished": job.unfinished,
        "damaged": job.damaged,
        "damaged_header": header.damaged,
        "software": software(header),
        "failures": ledger.failed_calls(),
        "anomalies": ledger.anomalies.total(),
        "anomaly_kinds": {
            "unknown_free": ledger.anomalies.unknown_free,
            "same_address": ledger.anomalies.same_address,
            "overlap": ledger.anomalies.overlap,
            "segment": ledger.anomalies.segment,
            "unknown_kind": ledger.anomalies.unknown_kind,
            "unknown_class": ledger.anomalies.unknown_class,
            "unknown_device": ledger.anomalies.unknown_device,
        },
        "devices": devices(job),
        "host_memory": host(job),
        "apis": apis(ledger),
        "failed": failed(ledger),
        "surges": ledger.surges.count,
        "largest_surges": surges(job),
        "why": verdict_lines::as_json(job),
        LIVE: [],
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
            let free = ledger.free();
            let mut device = json!({
                "device": ordinal,
                "uuid": entry.and_then(|entry| device_uuid(&entry.uuid)),
                "name": entry.map(|entry| entry.name.as_str()),
                "total_memory": entry.map(|entry| entry.total_memory),
                "limit": entry.and_then(|entry| entry.limit),
                "requested": level(ledger.all.requested),
                "allocated": level(ledger.all.allocated),
                "reserved": level(ledger.all.reserved),
                "utilisation": ledger.all.utilisation(),
                "fragmentation": free.fragmentation(),
                "free_inside": free.bytes,
                "largest_free_block": free.largest,
                "count": ledger.all.count,
                "live_count": ledger.all.live,
                "failures": ledger.failures,
                "segments": {
                    "current": ledger.space.segments(),
                    "obtained": ledger.segments_obtained,
                    "returned": ledger.segments_returned,
                },
                "classes": classes(ledger),
            });
            if ledger.reclaims != Reclaims::default() {
                device["reclaims"] = reclaims::as_json(&ledger.reclaims);
            }
            if ledger.stitches > 0 {
                device["stitches"] = json!(ledger.stitches);
                device["stitched_bytes"] = json!(ledger.stitched);
            }
            device
        })
        .collect()
}

/// The largest surges, with the stacks that asked for memory.
fn surges(job: &Job) -> Value {
    if job.ledger.surges.list.is_empty() {
        return json!([]);
    }
    let labels = Labels::load(&job.path, job.header.wall_start_ns);
    host_memory::surges_as_json(&job.ledger.surges, &labels)
}

fn host(job: &Job) -> Value {
    let empty = DeviceLedger::default();
    let ledger = job.host_memory().unwrap_or(&empty);
    json!({
        "of_process": host_memory::as_json(&job.ledger.host),
        "device": HOST_DEVICE,
        "requested": level(ledger.all.requested),
        "allocated": level(ledger.all.allocated),
        "reserved": level(ledger.all.reserved),
        "count": ledger.all.count,
        "live_count": ledger.all.live,
        "failures": ledger.failures,
        "classes": classes(ledger),
    })
}

fn classes(ledger: &DeviceLedger) -> Value {
    let class = |(&class, totals): (&u8, &Totals)| {
        json!({
            "class": class_name(class),
            "requested": level(totals.requested),
            "allocated": level(totals.allocated),
            "reserved": level(totals.reserved),
            "count": totals.count,
            "live_count": totals.live,
        })
    };
    ledger.classes.iter().map(class).collect()
}

fn level(level: Level) -> Value {
    json!({ "current": level.current, "peak": level.peak })
}

fn apis(ledger: &Ledger) -> Value {
    ledger
        .apis
        .iter()
        .map(|(&api, totals)| {
            json!({ "api": api_name(api), "calls": totals.calls, "failures": totals.failures, "bytes": totals.bytes })
        })
        .collect()
}

fn failed(ledger: &Ledger) -> Value {
    ledger
        .failures
        .iter()
        .map(|(&(api, result), failure)| {
            json!({
                "api": api_name(api),
                "code": result,
                "result": names::failed_with(api, result),
                "count": failure.count,
                "refused_by_limit": failure.by_limit,
                "refused_by_guard": failure.by_guard,
                "last_size": failure.last_size,
                "last_device": failure.last_device,
                "last_time_ns": failure.last_ns,
            })
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
