//! `--fragmentation`: the free memory inside segments, in pieces by size, at the failure and the end, and over time.

use serde_json::{Value, json};

use super::study::Study;
use crate::analysis::fragmentation::{Fragmentation, Pieces, Sample};
use crate::render::format::{count, duration, percent, size};
use crate::render::page::Page;

/// Samples over the time of the job.
pub const SAMPLES: u64 = 16;

pub fn show(page: &mut Page, study: &Study, seen: &Fragmentation) {
    let mut devices = Vec::new();
    for (&device, ledger) in study.job.ledger.devices.iter().filter(|(device, _)| **device >= 0) {
        if ledger.segments_obtained == 0 {
            page.heading(format!("Device {device}: no segments"));
            page.line("The driver served each request itself, so no free memory lies inside segments.");
            continue;
        }
        let end = Sample::of(ledger, study.job.ledger.last_ns);
        let failure = seen
            .failure
            .as_ref()
            .filter(|(of, _)| *of == device)
            .map(|(_, sample)| sample);
        let at_peak = ledger.at_peak();
        page.heading(format!("Device {device}: free memory inside segments"));
        let moment = |name: &str, reserved: u64, free: crate::analysis::device_ledger::Free| {
            vec![
                name.to_owned(),
                size(reserved),
                size(free.bytes),
                size(free.largest),
                percent(Some(free.fragmentation())),
            ]
        };
        let mut rows = vec![moment("peak reserved", ledger.all.reserved.peak, at_peak)];
        rows.extend(failure.map(|sample| moment("failure", sample.reserved, sample.free)));
        rows.push(moment("end", end.reserved, end.free));
        let titles = ["moment", "reserved", "free inside", "largest block", "fragmentation"];
        page.table(&titles, &[1, 2, 3, 4], rows);
        if let Some(sample) = failure {
            failed(page, sample);
        }
        let (when, sample) = failure.map_or(("the end", &end), |failure| ("the failure", failure));
        page.heading(format!("Free blocks at {when}, by size"));
        let row = |(power, pieces): (&u32, &Pieces)| {
            vec![
                format!("from {}", size(1 << power)),
                count(pieces.count),
                size(pieces.bytes),
            ]
        };
        page.table(
            &["size", "blocks", "bytes"],
            &[1, 2],
            sample.pieces.iter().map(row).collect(),
        );
        let of_device = || {
            seen.samples
                .iter()
                .filter(|(of, _)| *of == device)
                .map(|(_, sample)| sample)
        };
        page.heading("Over time");
        let row = |sample: &Sample| {
            vec![
                duration(sample.time_ns),
                size(sample.allocated),
                size(sample.reserved),
                size(sample.free.bytes),
                size(sample.free.largest),
                percent(Some(sample.free.fragmentation())),
            ]
        };
        let titles = [
            "time",
            "allocated",
            "reserved",
            "free inside",
            "largest block",
            "fragmentation",
        ];
        page.table(&titles, &[0, 1, 2, 3, 4, 5], of_device().map(row).collect());
        devices.push(json!({
            "device": device,
            "at_peak_reserved": {
                "reserved": ledger.all.reserved.peak,
                "free_inside": at_peak.bytes,
                "largest_free_block": at_peak.largest,
                "fragmentation": at_peak.fragmentation(),
            },
            "failure": failure.map(as_json),
            "end": as_json(&end),
            "over_time": of_device().map(as_json).collect::<Value>(),
        }));
    }
    if let Some(framework) = study.job.caches() {
        page.line(format!(
            "{framework}'s own cache asks for segments; what it wastes inside them is not seen here."
        ));
    }
    page.json("fragmentation", json!({ "devices": devices }));
}

/// Says why the failed request did not fit into the free memory inside segments.
fn failed(page: &mut Page, sample: &Sample) {
    let Some(asked) = sample.failed else { return };
    let (asked_text, free, largest) = (size(asked), size(sample.free.bytes), size(sample.free.largest));
    page.line(match (asked <= sample.free.largest, asked <= sample.free.bytes) {
        (true, _) => format!(
            "The failed request of {asked_text} is no longer than the largest free block, {largest}: other streams or memory \
             in use kept it from being served there."
        ),
        (false, true) => format!(
            "The failed request of {asked_text} is no more than the {free} that are free inside segments, but longer than the \
             largest block, {largest}."
        ),
        (false, false) => {
            format!("The failed request of {asked_text} is more than the {free} that are free inside segments.")
        }
    });
}

fn as_json(sample: &Sample) -> Value {
    let pieces = sample
        .pieces
        .iter()
        .map(|(&power, pieces)| json!({ "from": 1u64 << power, "count": pieces.count, "bytes": pieces.bytes }));
    json!({
        "time_ns": sample.time_ns,
        "allocated": sample.allocated,
        "reserved": sample.reserved,
        "free_inside": sample.free.bytes,
        "largest_free_block": sample.free.largest,
        "fragmentation": sample.free.fragmentation(),
        "failed_request": sample.failed,
        "free_blocks": pieces.collect::<Value>(),
    })
}
