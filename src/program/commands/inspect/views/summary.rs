//! `--summary`: the rows and columns of `torch.cuda.memory_summary()`, for any job.

use serde_json::{Value, json};

use super::study::Study;
use crate::analysis::summary::{DeviceSummary, Metric, Pools, Summary};
use crate::render::format::{count, many, size};
use crate::render::page::Page;

pub fn show(page: &mut Page, study: &Study, summary: &Summary) {
    let mut devices = Vec::new();
    for (&device, of_device) in &summary.devices {
        page.heading(format!(
            "Device {device}: {} failed for lack of memory; with repeated requests counted once, {} in the job",
            many(of_device.out_of_memory, "call"),
            count(study.job.ledger.out_of_memory.count),
        ));
        let mut rows = Vec::new();
        pools(&mut rows, "Allocated memory", &of_device.allocated, size);
        pools(&mut rows, "Active memory", &of_device.allocated, size);
        pools(&mut rows, "Requested memory", &of_device.requested, size);
        rows.push(row("GPU reserved memory", &of_device.reserved, size));
        rows.push(row("Non-releasable memory", &of_device.free_inside, size));
        pools(&mut rows, "Allocations", &of_device.allocations, count);
        pools(&mut rows, "Active allocs", &of_device.allocations, count);
        pools(&mut rows, "GPU reserved segments", &of_device.segments, count);
        let titles = ["metric", "current", "peak", "total allocated", "total freed"];
        page.table(&titles, &[1, 2, 3, 4], rows);
        devices.push(as_json(device, of_device));
    }
    page.line(
        "Small pool: requests of at most 1 MiB, segments of at most 2 MiB. A freed block is free at once, so active is what \
         is allocated.\nNon-releasable memory: all free bytes inside segments.",
    );
    page.json("summary", json!({ "devices": devices }));
}

fn row(name: &str, metric: &Metric, text: fn(u64) -> String) -> Vec<String> {
    let Metric {
        current,
        peak,
        allocated,
        freed,
    } = *metric;
    let figures = [current, peak, allocated, freed].map(text);
    std::iter::once(name.to_owned()).chain(figures).collect()
}

fn pools(rows: &mut Vec<Vec<String>>, name: &str, pools: &Pools, text: fn(u64) -> String) {
    rows.push(row(name, &pools.all, text));
    rows.push(row("  from large pool", &pools.large, text));
    rows.push(row("  from small pool", &pools.small, text));
}

fn metric(metric: &Metric) -> Value {
    json!({
        "current": metric.current,
        "peak": metric.peak,
        "allocated": metric.allocated,
        "freed": metric.freed,
    })
}

/// The names are those of `torch.cuda.memory_stats()`.
fn as_json(device: i16, summary: &DeviceSummary) -> Value {
    let pools = |pools: &Pools| json!({ "all": metric(&pools.all), "large_pool": metric(&pools.large), "small_pool": metric(&pools.small) });
    json!({
        "device": device,
        "allocated_bytes": pools(&summary.allocated),
        "active_bytes": pools(&summary.allocated),
        "requested_bytes": pools(&summary.requested),
        "reserved_bytes": { "all": metric(&summary.reserved) },
        "inactive_split_bytes": { "all": metric(&summary.free_inside) },
        "allocation": pools(&summary.allocations),
        "active": pools(&summary.allocations),
        "segment": pools(&summary.segments),
        "num_ooms": summary.out_of_memory,
    })
}
