//! The overview of several jobs: a line for each process, then the sums for each device.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::analysis::device_ledger::Level;
use crate::analysis::job::Job;
use crate::analysis::names::device_uuid;
use crate::render::format::{count, duration, ended, printable, size, strong};
use crate::render::table::table;

/// Writes a line for each process, then the sums of all processes for each device.
pub fn overview(out: &mut impl Write, jobs: &[Job], bold: bool) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut together: BTreeMap<(String, String), [u64; 4]> = BTreeMap::new();
    for job in jobs {
        let mut sum = [Level::default(); 2];
        for (ordinal, entry, ledger) in job.devices() {
            let Some(ledger) = ledger else { continue };
            let name = entry.map_or_else(|| format!("device {ordinal}"), |entry| printable(&entry.name, 40));
            let place = entry
                .and_then(|entry| device_uuid(&entry.uuid))
                .unwrap_or_else(|| format!("{ordinal}"));
            let entry = together
                .entry((printable(&job.header.host, 40), format!("{place}  {name}")))
                .or_default();
            for (place, level) in [ledger.all.allocated, ledger.all.reserved].into_iter().enumerate() {
                entry[2 * place] = entry[2 * place].saturating_add(level.current);
                entry[2 * place + 1] = entry[2 * place + 1].saturating_add(level.peak);
                sum[place].current = sum[place].current.saturating_add(level.current);
                sum[place].peak = sum[place].peak.saturating_add(level.peak);
            }
        }
        let [allocated, reserved] = sum;
        rows.push(vec![
            job.header.pid.to_string(),
            rank(job),
            printable(&job.title(), 40),
            printable(&job.header.strategy, 32),
            ended(job.state),
            duration(job.duration_ns),
            size(allocated.peak),
            size(reserved.peak),
            size(allocated.current),
            count(job.ledger.failed_calls()),
            count(job.lost),
        ]);
    }
    writeln!(out, "{}", strong(&format!("{} processes", jobs.len()), bold))?;
    let titles = [
        "pid",
        "rank",
        "job",
        "strategy",
        "ended",
        "duration",
        "peak alloc.",
        "peak res.",
        "live",
        "failures",
        "lost",
    ];
    table(out, &titles, &[5, 6, 7, 8, 9, 10], rows)?;
    if together.is_empty() {
        return Ok(());
    }
    let rows = together.into_iter().map(
        |((host, device), [allocated, allocated_peak, reserved, reserved_peak])| {
            vec![
                host,
                device,
                size(allocated),
                size(allocated_peak),
                size(reserved),
                size(reserved_peak),
            ]
        },
    );
    writeln!(
        out,
        "\n{}",
        strong(
            "Devices, all processes together (peaks are sums of each process's own)",
            bold
        )
    )?;
    let titles = ["host", "device", "allocated now", "peak", "reserved now", "peak"];
    table(out, &titles, &[2, 3, 4, 5], rows.collect())
}

/// The process's rank in its job, if a launcher gave it one.
fn rank(job: &Job) -> String {
    ["RANK", "PADDLE_TRAINER_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"]
        .iter()
        .find_map(|wanted| job.header.environment.iter().find(|(name, _)| name == wanted))
        .map_or_else(|| "-".into(), |(_, value)| printable(value, 12))
}
