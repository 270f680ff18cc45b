//! The page of one job in `inspect`: header, devices, and the first entries of each list (APIs, failed calls).

use base::api::Api;
use journal::reader::Header;

use crate::analysis::device_ledger::{DeviceLedger, Reclaims, Totals};
use crate::analysis::job::{Job, NOT_KNOWN};
use crate::analysis::ledger::Ledger;
use crate::analysis::names;
use crate::analysis::names::{api_name, class_name};
use crate::render::format::{self, count, duration, many, percent, printable, shown, size, strong, times};
use crate::render::host_memory;
use crate::render::text_or_json::Page;
use crate::render::verdict_lines::{damaged_parts, verdict};

/// Environment variables that show which process of a job wrote the journal.
const RANKS: &[&str] = &[
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "PADDLE_TRAINER_ID",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "CUDA_VISIBLE_DEVICES",
];

/// Shows a job: `top` entries of each list.
pub fn job(page: &mut Page, job: &Job, top: usize) {
    for (line, number) in verdict(job).iter().zip(0..) {
        match number {
            0 => page.line(strong(&line.to_string())),
            _ => page.line(line),
        }
    }
    page.line("");
    head(page, job);
    let empty = DeviceLedger::default();
    for (ordinal, entry, ledger) in job.devices() {
        let about = entry.map_or_else(String::new, |entry| {
            let limit = entry
                .limit
                .map_or_else(String::new, |limit| format!(", limit {}", size(limit)));
            format!("  {}, {}{limit}", printable(&entry.name, 64), size(entry.total_memory))
        });
        page.heading(format!("Device {ordinal}{about}"));
        device(page, job, ledger.unwrap_or(&empty));
    }
    let pinned = job.host_memory().filter(|host| !host.classes.is_empty());
    let host = host_memory::lines(&job.ledger.host);
    if pinned.is_some() || !host.is_empty() {
        page.heading("Host memory");
    }
    if let Some(pinned) = pinned {
        classes(page, pinned, "", Some(""));
    }
    host.iter().for_each(|line| page.line(format!("  {line}")));
    apis(page, job, top);
    failures(page, &job.ledger, top);
}

fn head(page: &mut Page, job: &Job) {
    let (header, ledger) = (&job.header, &job.ledger);
    let is_rank = |(name, _): &&(String, String)| RANKS.contains(&name.as_str());
    let ranks = header.environment.iter().filter(is_rank);
    let ranks: Vec<String> = ranks
        .map(|(name, value)| format!("{}={}", printable(name, 40), printable(value, 40)))
        .collect();
    let mut line = |name: &str, text: &str| page.line(format!("{}{text}", strong(&format!("{name:<10}"))));
    line("Job", &printable(&job.title(), 200));
    if !header.job.is_empty() && header.knows_process() {
        line("Command", &printable(&header.command_line.join(" "), 200));
    }
    let process = match job.is_imported() {
        true => "not known, because the journal was imported".to_owned(),
        false if !header.knows_process() => NOT_KNOWN.to_owned(),
        false => format!("{} on {} {}", header.pid, printable(&header.host, 64), ranks.join(" ")),
    };
    line("Process", process.trim_end());
    if header.knows_process() {
        line("Strategy", &printable(&header.strategy, 32));
    }
    let (ended, started) = (format::ended_after(job), format::started(job));
    line("Ended", &format!("{ended} (recorded from {started})"));
    if let Some(software) = software(header) {
        line("Software", &software);
    }
    let (events, unfinished, path) = (many(ledger.events, "event"), count(job.unfinished), shown(&job.path));
    let lost = match header.knows_lost() {
        true => format!("{} lost", count(job.lost)),
        false => format!("how many were lost is {NOT_KNOWN}"),
    };
    let damaged = match job.damaged {
        0 => String::new(),
        damaged => format!("{} damaged, ", count(damaged)),
    };
    let anomalies = match ledger.anomalies.total() {
        1 => "1 anomaly".to_owned(),
        anomalies => format!("{} anomalies", count(anomalies)),
    };
    line(
        "Journal",
        &format!("{events}, {lost}, {unfinished} unfinished, {damaged}{anomalies}; {path}"),
    );
    let parts = damaged_parts(job);
    if !parts.is_empty() {
        line(
            "",
            &format!("figures below may be wrong, because parts of the file are damaged: {parts}"),
        );
    }
    if job.lost > 0 {
        let first = job.lost_from_ns().map(duration);
        let (first, why) = (
            first.map_or_else(String::new, |at| format!(", the first at {at}")),
            job.lost_because(),
        );
        line(
            "",
            &format!("figures below are incomplete: events were lost{first} ({why})"),
        );
    }
}

fn apis(page: &mut Page, job: &Job, top: usize) {
    let mut apis: Vec<_> = job.ledger.apis.iter().collect();
    apis.sort_by_key(|(_, totals)| std::cmp::Reverse((totals.bytes, totals.calls)));
    let rows = apis.iter().map(|(api, totals)| {
        let is_of_tensors = [Api::torch_alloc, Api::torch_free].map(Api::number).contains(*api);
        let at_least = format::at_least(is_of_tensors && job.tells_at_least());
        let [calls, bytes] = [count(totals.calls), size(totals.bytes)].map(|figure| format!("{at_least}{figure}"));
        vec![api_name(**api), calls, count(totals.failed_calls), bytes]
    });
    list(page, "By API", "api|>calls|>failed|>bytes", rows, top);
}

fn failures(page: &mut Page, ledger: &Ledger, top: usize) {
    let mut failures: Vec<_> = ledger.failures.iter().collect();
    failures.sort_by_key(|(_, failure)| std::cmp::Reverse(failure.count));
    let rows = failures.iter().map(|((api, result), failure)| {
        vec![
            api_name(*api),
            names::failed_with(*api, *result),
            count(failure.count),
            count(failure.by_limit),
            count(failure.by_guard),
            size(failure.last_size),
            duration(failure.last_ns),
        ]
    });
    let titles = "api|result|>count|>by limit|>by guard|>last size|>last at";
    list(page, "Failed calls", titles, rows, top);
}

/// A table of the first rows under a heading, which says how many there are in all. Nothing without rows.
fn list(page: &mut Page, name: &str, titles: &str, rows: impl ExactSizeIterator<Item = Vec<String>>, top: usize) {
    let (shown, total) = (rows.len().min(top), rows.len());
    if shown > 0 {
        let more = if shown < total {
            format!(" (top {shown} of {total})")
        } else {
            String::new()
        };
        page.heading(format!("{name}{more}"));
        page.table(titles, rows.take(shown).collect());
    }
}

/// Frameworks, runtime, driver, and the settings of the frameworks' allocators, if any is known.
fn software(header: &Header) -> Option<String> {
    let known = header.software.iter().map(|(name, value)| {
        let value = printable(value, 64);
        match name.as_str() {
            "framework" => value,
            "runtime" => format!("CUDA runtime {value}"),
            "driver" => format!("driver for CUDA {value}"),
            "kernel_driver" => format!("kernel driver {value}"),
            "layer" => format!("layer {value} before the driver"),
            "layer_in_front" => format!("layer {value} in front of the library"),
            _ => format!("{} {value}", printable(name, 32)),
        }
    });
    let set = header
        .environment
        .iter()
        .filter(|(name, _)| config::is_allocator_setting(name));
    let settings = set.map(|(name, value)| format!("{}={}", printable(name, 64), printable(value, 80)));
    let parts: Vec<String> = known.chain(settings).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn device(page: &mut Page, job: &Job, ledger: &DeviceLedger) {
    let at_least = format::at_least(job.tells_at_least());
    let of_reserved = job
        .knows_reserved(ledger)
        .then_some(if job.ledger.begins_late { at_least } else { "" });
    classes(page, ledger, at_least, of_reserved);
    if of_reserved.is_none() {
        return page.line("  The trace has requests alone: what was obtained from the driver for them is not known");
    }
    let of = match job.caches() {
        Some(framework) => {
            format!(", counting {framework}'s segments as used: what it wastes inside them is not seen here")
        }
        None => String::new(),
    };
    page.line(format!(
        "  utilisation {at_least}{}{of}",
        percent(ledger.all.utilisation())
    ));
    if ledger.segments_obtained > 0 {
        let given_back = match ledger.segments_returned {
            0 => "nothing given back".to_owned(),
            1 => "given back in 1 part".to_owned(),
            parts => format!("given back in {} parts", count(parts)),
        };
        let free = ledger.free();
        page.line(format!(
            "  segments {} now, obtained {}, {given_back}; free inside {}, largest block {}, fragmentation {}",
            ledger.space.segments(),
            times(ledger.segments_obtained),
            size(free.bytes),
            size(free.largest),
            percent(Some(free.fragmentation()))
        ));
    }
    let cache = &ledger.framework;
    if let Some(tensors) = job.tensors.as_ref().filter(|_| cache.segments() > 0) {
        let [free, largest] = [cache.free(), cache.largest()].map(size);
        let (segments, until) = (many(cache.segments() as u64, "segment"), duration(tensors.until_ns()));
        let by = match tensors.snapshots {
            true => "snapshots, between which more may have been live,",
            false => "record",
        };
        page.line(format!(
            "  PyTorch's cache: {free} free in {segments}, largest block {largest}, by its own {by} until {until}"
        ));
    }
    let Reclaims {
        asked,
        from_others,
        given,
        for_others,
    } = ledger.reclaims;
    if asked > 0 {
        page.line(format!(
            "  asked others for memory {}, who gave back {}",
            times(asked),
            size(from_others)
        ));
    }
    if given > 0 {
        page.line(format!(
            "  gave memory back for others {}, {}",
            times(given),
            size(for_others)
        ));
    }
    if ledger.stitches > 0 {
        let (made, addresses) = (count(ledger.stitches), size(ledger.stitched));
        page.line(format!("  stitches {made} made, now {addresses} of addresses"));
    }
}

/// A table of requested, allocated and reserved bytes, now and at the peak: of all classes together, and of each
/// class. `at_least` stands before peaks that may have been higher, `of_reserved` before those of reserved bytes; `None` if these
/// are not known.
fn classes(page: &mut Page, ledger: &DeviceLedger, at_least: &str, of_reserved: Option<&str>) {
    let row = |name: String, totals: &Totals| {
        let mut row = vec![name];
        let levels = [
            (totals.requested, Some(at_least)),
            (totals.allocated, Some(at_least)),
            (totals.reserved, of_reserved),
        ];
        for (level, at_least) in levels {
            row.extend(match at_least {
                Some(at_least) => [size(level.current), format!("{at_least}{}", size(level.peak))],
                None => ["not known", "not known"].map(str::to_owned),
            });
        }
        row.extend([count(totals.count), count(totals.live)]);
        row
    };
    let mut rows = vec![row("all".into(), &ledger.all)];
    rows.extend(
        ledger
            .classes
            .iter()
            .map(|(&class, totals)| row(class_name(class), totals)),
    );
    let of_classes = ledger.classes.values().map(|totals| totals.count).sum::<u64>();
    if ledger.classes.len() == 1 && ledger.all.count == of_classes {
        rows.remove(0); // the only class says it all
    }
    page.table(
        "class|>requested|>peak|>allocated|>peak|>reserved|>peak|>count|>live",
        rows,
    );
}
