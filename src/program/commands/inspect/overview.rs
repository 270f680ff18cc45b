//! The overview of several jobs: a line for each process, then a line for each device. Processes that ended at
//! different times never held a device's memory together, so their bytes are not added.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use journal::reader::State;

use crate::analysis::device_ledger::Level;
use crate::analysis::job::Job;
use crate::analysis::names::device_uuid;
use crate::analysis::rank::rank;
use crate::analysis::runs::runs;
use crate::render::format::{self, count, duration, printable, shown, size, strong};
use crate::render::table::table;

/// What is known of a device: bytes allocated and reserved by the processes that run, and the largest peaks of one
/// process.
#[derive(Default)]
struct Place {
    running: u64,
    now: [u64; 2],
    peaks: [u64; 2],
}

/// Writes a line for each process, then a line for each device.
pub fn overview(out: &mut impl Write, jobs: &[Job], bold: bool) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut devices: BTreeMap<(String, String), Place> = BTreeMap::new();
    for job in jobs {
        let mut sum = [Level::default(); 2];
        for (ordinal, entry, ledger) in job.devices() {
            let Some(ledger) = ledger else { continue };
            let name = entry.map_or_else(|| format!("device {ordinal}"), |entry| printable(&entry.name, 40));
            let place = entry
                .and_then(|entry| device_uuid(&entry.uuid))
                .unwrap_or_else(|| format!("{ordinal}"));
            let device = devices
                .entry((printable(&job.header.host, 40), format!("{place}  {name}")))
                .or_default();
            let runs = job.state == State::Running;
            device.running += u64::from(runs);
            for (place, level) in [ledger.all.allocated, ledger.all.reserved].into_iter().enumerate() {
                if runs {
                    device.now[place] = device.now[place].saturating_add(level.current);
                }
                device.peaks[place] = device.peaks[place].max(level.peak);
                sum[place].current = sum[place].current.saturating_add(level.current);
                sum[place].peak = sum[place].peak.saturating_add(level.peak);
            }
        }
        let [allocated, reserved] = sum;
        rows.push(vec![
            job.header.pid.to_string(),
            rank(&job.header).map_or_else(|| "-".into(), |rank| printable(&rank, 12)),
            printable(&job.title(), 40),
            if job.header.knows_process() {
                printable(&job.header.strategy, 32)
            } else {
                "-".to_owned()
            },
            format::job_ended(job),
            format::started(job),
            duration(job.duration_ns),
            size(allocated.peak),
            size(reserved.peak),
            size(allocated.current),
            count(job.ledger.failed_calls()),
            format::events_lost(job),
            damaged(job),
            shown(Path::new(job.path.file_name().unwrap_or_default())),
        ]);
    }
    writeln!(out, "{}", strong(&format!("{} processes", jobs.len()), bold))?;
    let titles = [
        "pid",
        "rank",
        "job",
        "strategy",
        "ended",
        "started",
        "duration",
        "peak alloc.",
        "peak res.",
        "live",
        "failures",
        "lost",
        "damaged",
        "journal",
    ];
    table(out, &titles, &[6, 7, 8, 9, 10, 11, 12], rows)?;
    let runs = runs(jobs.iter().collect(), |job: &&Job| job.span());
    if runs.len() > 1 {
        writeln!(out, "{} runs, which did not overlap", runs.len())?;
    }
    if devices.is_empty() {
        return Ok(());
    }
    let rows = devices.into_iter().map(|((host, device), place)| {
        vec![
            host,
            device,
            count(place.running),
            size(place.now[0]),
            size(place.now[1]),
            size(place.peaks[0]),
            size(place.peaks[1]),
        ]
    });
    writeln!(
        out,
        "\n{}",
        strong(
            "Devices (now: of the processes that run; peak: the largest of one process)",
            bold
        )
    )?;
    let titles = [
        "host",
        "device",
        "running",
        "allocated now",
        "reserved now",
        "peak alloc.",
        "peak res.",
    ];
    table(out, &titles, &[2, 3, 4, 5, 6], rows.collect())
}

/// The number of damaged records, and whether the header is damaged.
fn damaged(job: &Job) -> String {
    match (job.damaged, job.header.damaged.is_empty()) {
        (records, true) => count(records),
        (0, false) => "header".to_owned(),
        (records, false) => format!("header, {}", count(records)),
    }
}
