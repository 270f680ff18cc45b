//! The page of one job in `inspect` and `top`: header, devices, and the first entries of each list (APIs, failures).

use std::io::{self, Write};

use journal::reader::Header;

use crate::analysis::device_ledger::{DeviceLedger, Reclaims, Totals};
use crate::analysis::job::{Job, NOT_KNOWN};
use crate::analysis::ledger::Ledger;
use crate::analysis::names;
use crate::analysis::names::{api_name, class_name};
use crate::render::format::{self, count, duration, many, percent, printable, shown, size, strong, times};
use crate::render::host_memory;
use crate::render::table::table;
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

pub struct JobPage {
    /// Number of entries to show of each list.
    pub top: usize,
    /// Whether headings are printed bold.
    pub bold: bool,
}

impl JobPage {
    pub fn job(&self, out: &mut impl Write, job: &Job) -> io::Result<()> {
        for (line, number) in verdict(job).iter().zip(0..) {
            writeln!(out, "{}", strong(&line.to_string(), self.bold && number == 0))?;
        }
        writeln!(out)?;
        self.head(out, job)?;
        let empty = DeviceLedger::default();
        let devices = job.devices();
        for (ordinal, entry, ledger) in devices {
            let about = entry.map_or_else(String::new, |entry| {
                let limit = entry
                    .limit
                    .map_or_else(String::new, |limit| format!(", limit {}", size(limit)));
                format!("  {}, {}{limit}", printable(&entry.name, 64), size(entry.total_memory))
            });
            self.heading(out, &format!("Device {ordinal}{about}"))?;
            device(out, job, ledger.unwrap_or(&empty))?;
        }
        let pinned = job.host_memory().filter(|host| !host.classes.is_empty());
        let host = host_memory::lines(&job.ledger.host);
        if pinned.is_some() || !host.is_empty() {
            self.heading(out, "Host memory")?;
        }
        if let Some(pinned) = pinned {
            classes(out, pinned)?;
        }
        for line in host {
            writeln!(out, "  {line}")?;
        }
        self.apis(out, &job.ledger)?;
        self.failures(out, &job.ledger)
    }

    fn head(&self, out: &mut impl Write, job: &Job) -> io::Result<()> {
        let header = &job.header;
        let ranks: Vec<String> = header
            .environment
            .iter()
            .filter(|(name, _)| RANKS.contains(&name.as_str()))
            .map(|(name, value)| format!("{}={}", printable(name, 40), printable(value, 40)))
            .collect();
        let mut line = |name: &str, text: String| writeln!(out, "{}{text}", strong(&format!("{name:<10}"), self.bold));
        line("Job", printable(&job.title(), 200))?;
        if !header.job.is_empty() && header.knows_process() {
            line("Command", printable(&header.command_line.join(" "), 200))?;
        }
        let process = match job.is_imported() {
            true => "not known, because the journal was imported".to_owned(),
            false if !header.knows_process() => NOT_KNOWN.to_owned(),
            false => format!("{} on {} {}", header.pid, printable(&header.host, 64), ranks.join(" ")),
        };
        line("Process", process.trim_end().to_owned())?;
        if header.knows_process() {
            line("Strategy", printable(&header.strategy, 32))?;
        }
        let (ended, started) = (format::ended_after(job), format::started(job));
        line("Ended", format!("{ended} (started {started})"))?;
        if let Some(software) = software(header) {
            line("Software", software)?;
        }
        let ledger = &job.ledger;
        let damaged = match job.damaged {
            0 => String::new(),
            damaged => format!("{} damaged, ", count(damaged)),
        };
        line(
            "Journal",
            format!(
                "{}, {}, {} unfinished, {}{}; {}",
                many(ledger.events, "event"),
                if header.knows_lost() {
                    format!("{} lost", count(job.lost))
                } else {
                    format!("how many were lost is {NOT_KNOWN}")
                },
                count(job.unfinished),
                damaged,
                match ledger.anomalies.total() {
                    1 => "1 anomaly".to_owned(),
                    anomalies => format!("{} anomalies", count(anomalies)),
                },
                shown(&job.path)
            ),
        )?;
        let parts = damaged_parts(job);
        if !parts.is_empty() {
            line(
                "",
                format!("figures below may be wrong, because parts of the file are damaged: {parts}"),
            )?;
        }
        if job.lost > 0 {
            let first = job
                .lost_from_ns()
                .map_or_else(String::new, |first_ns| format!(", the first at {}", duration(first_ns)));
            line(
                "",
                format!(
                    "figures below are incomplete: events were lost{first} ({})",
                    job.lost_because()
                ),
            )?;
        }
        Ok(())
    }

    fn apis(&self, out: &mut impl Write, ledger: &Ledger) -> io::Result<()> {
        let mut apis: Vec<_> = ledger.apis.iter().collect();
        apis.sort_by_key(|(_, totals)| std::cmp::Reverse((totals.bytes, totals.calls)));
        let rows = apis.iter().map(|(api, totals)| {
            vec![
                api_name(**api),
                count(totals.calls),
                count(totals.failures),
                size(totals.bytes),
            ]
        });
        self.list(out, "By API", "api|>calls|>failed|>bytes", rows)
    }

    fn failures(&self, out: &mut impl Write, ledger: &Ledger) -> io::Result<()> {
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
        self.list(out, "Failures", titles, rows)
    }

    /// Writes a table of the first rows under a heading, which says how many there are in all. Without rows, writes nothing.
    fn list(
        &self,
        out: &mut impl Write,
        name: &str,
        titles: &str,
        rows: impl ExactSizeIterator<Item = Vec<String>>,
    ) -> io::Result<()> {
        let (shown, total) = (rows.len().min(self.top), rows.len());
        if shown == 0 {
            return Ok(());
        }
        let more = if shown < total {
            format!(" (top {shown} of {total})")
        } else {
            String::new()
        };
        self.heading(out, &format!("{name}{more}"))?;
        table(out, titles, rows.take(shown).collect())
    }

    fn heading(&self, out: &mut impl Write, text: &str) -> io::Result<()> {
        writeln!(out, "\n{}", strong(text, self.bold))
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

fn device(out: &mut impl Write, job: &Job, ledger: &DeviceLedger) -> io::Result<()> {
    classes(out, ledger)?;
    let free = ledger.free();
    let of = match job.caches() {
        Some(framework) => {
            format!(", counting {framework}'s segments as used: what it wastes inside them is not seen here")
        }
        None => String::new(),
    };
    writeln!(out, "  utilisation {}{of}", percent(ledger.all.utilisation()))?;
    if ledger.segments_obtained > 0 {
        let given_back = match ledger.segments_returned {
            0 => "nothing given back".to_owned(),
            1 => "given back in 1 part".to_owned(),
            parts => format!("given back in {} parts", count(parts)),
        };
        writeln!(
            out,
            "  segments {} now, obtained {}, {}; free inside {}, largest block {}, fragmentation {}",
            ledger.space.segments(),
            times(ledger.segments_obtained),
            given_back,
            size(free.bytes),
            size(free.largest),
            percent(Some(free.fragmentation()))
        )?;
    }
    if let Some(tensors) = &job.tensors
        && ledger.framework.segments() > 0
    {
        writeln!(
            out,
            "  PyTorch's cache: {} free in {}, largest block {}, by its own {} until {}",
            size(ledger.framework.free()),
            many(ledger.framework.segments() as u64, "segment"),
            size(ledger.framework.largest()),
            if tensors.snapshots {
                "snapshots, between which more may have been live,"
            } else {
                "record"
            },
            duration(tensors.until_ns())
        )?;
    }
    let Reclaims {
        asked,
        from_others,
        given,
        for_others,
    } = ledger.reclaims;
    if asked > 0 {
        writeln!(
            out,
            "  asked others for memory {}, who gave back {}",
            times(asked),
            size(from_others)
        )?;
    }
    if given > 0 {
        writeln!(
            out,
            "  gave memory back for others {}, {}",
            times(given),
            size(for_others)
        )?;
    }
    if ledger.stitches > 0 {
        writeln!(
            out,
            "  stitches {} made, now {} of addresses",
            count(ledger.stitches),
            size(ledger.stitched)
        )?;
    }
    Ok(())
}

/// Writes a table of requested, allocated and reserved bytes, now and at the peak: of all classes together, and of each
/// class.
fn classes(out: &mut impl Write, ledger: &DeviceLedger) -> io::Result<()> {
    let row = |name: String, totals: &Totals| {
        let mut row = vec![name];
        for level in [totals.requested, totals.allocated, totals.reserved] {
            row.extend([size(level.current), size(level.peak)]);
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
    if ledger.classes.len() == 1 && ledger.all.count == ledger.classes.values().map(|totals| totals.count).sum::<u64>()
    {
        rows.remove(0); // the only class says it all
    }
    table(
        out,
        "class|>requested|>peak|>allocated|>peak|>reserved|>peak|>count|>live",
        rows,
    )
}
