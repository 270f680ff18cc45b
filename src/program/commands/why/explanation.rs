//! The page of `why`: the verdict, the ledger, the holders, and what to do next.

use journal::format::Teller;
use journal::reader::State;

use super::first_death::{Run, died_ns};
use crate::analysis::finding::Failure;
use crate::analysis::job::NOT_KNOWN;
use crate::analysis::labels::Labels;
use crate::analysis::rank::rank;
use crate::render::answer::Answer;
use crate::render::format::{self, count, difference, duration, ended, printable, shown, size};
use crate::render::host_memory;
use crate::render::text_or_json::Page;
use crate::render::verdict_lines::process_name;

pub fn show(page: &mut Page, run: &Run, answer: &Answer) {
    let job = answer.job;
    // Bold, and red or green if the end is known to be bad or good.
    let style = match format::end_title(job) {
        (_, is_bad) if is_bad || answer.finding.fatal => "1;31",
        _ if job.state == State::Exited(0) && !job.is_imported() => "1;32",
        _ => "1",
    };
    for (line, number) in answer.lines.iter().zip(0..) {
        match number {
            0 => page.line(format::in_style(&line.to_string(), style)),
            _ => page.line(line),
        }
    }
    if let Some(asked_by) = &answer.holders.asked_by {
        page.line(format!("Asked for by {}", printable(asked_by, 200)));
    }
    let process = if job.is_imported() {
        "Imported trace".to_owned()
    } else {
        let rank = rank(&job.header).map_or_else(String::new, |rank| format!(", rank {}", printable(&rank, 12)));
        format!("Process {} on {}{rank}", job.header.pid, format::host(job, 64))
    };
    let (title, path) = (printable(&job.title(), 80), shown(&job.path));
    let (started, ended) = (format::started(job), format::ended_after(job));
    page.line(format!(
        "{process}, {title}, recorded from {started}, ended: {ended}; {path}"
    ));
    if let Some(before) = &run.died_before {
        let (why, pid) = (before.finding().verdict.words(), before.header.pid);
        let (started, path) = (format::started(before), shown(&before.path));
        page.line(format!(
            "An earlier run died ({why}): process {pid}, started {started}: vramshim why {path}"
        ));
    }
    if run.jobs.len() > 1 {
        others(page, run);
    }
    if let Some(failure) = &answer.finding.failure {
        ledger(page, answer, failure);
    }
    if job.ledger.surges.count > 0 {
        let labels = Labels::load(&job.path);
        let lines = host_memory::surge_lines(&job.ledger.surges, &labels, &path);
        lines.iter().for_each(|line| page.line(line));
    }
    // The kernel ends a process with SIGKILL if the machine or its control group has no more.
    let host = host_memory::lines(&job.ledger.host).into_iter();
    host.filter(|_| job.state == State::Killed)
        .for_each(|line| page.line(format!("Host memory  {line}")));
    let holders = &answer.holders;
    if !holders.list.is_empty() {
        let more = match holders.in_all - holders.list.len() {
            0 => String::new(),
            _ => format!(" (top {} of {})", holders.list.len(), holders.in_all),
        };
        page.heading(format!("Holders {}{more}", holders.moment));
        let rows = holders.list.iter().map(|holder| {
            let (what, oldest) = (printable(&holder.what, 200), duration(holder.oldest_ns));
            vec![size(holder.bytes), count(holder.count), what, oldest]
        });
        // A snapshot shows a tensor later than it came, and so does the begin of a trace.
        let oldest = match answer.job.tells_at_least() {
            true => "oldest by",
            false => "oldest from",
        };
        page.table(&format!(">bytes|>count|what|>{oldest}"), rows.collect());
    }
    if !answer.next.is_empty() {
        page.heading("Next");
        answer.next.iter().for_each(|step| page.line(format!("  {step}")));
    }
}

/// A line for each process of the run, in the order of their deaths.
fn others(page: &mut Page, run: &Run) {
    let older = match run.older {
        0 => String::new(),
        older => format!("; {} of earlier runs left out", count(older as u64)),
    };
    let all = count(run.jobs.len() as u64);
    page.heading(format!("{all} processes, the first to die first{older}"));
    let first_ns = run.jobs.iter().filter_map(died_ns).min();
    let rows = run.jobs.iter().map(|job| {
        let died = died_ns(job).zip(first_ns);
        let died = died.map(|(died, first)| died.saturating_sub(first));
        vec![
            job.header.pid.to_string(),
            rank(&job.header).map_or_else(|| "-".into(), |rank| printable(&rank, 12)),
            format::host(job, 40),
            printable(&job.title(), 40),
            match format::knows_end(job) {
                true => ended(job.state),
                false => NOT_KNOWN.to_owned(),
            },
            match (died, job.state) {
                (Some(0), _) => "first".to_owned(),
                // Its death was not noted, only its last sign of life.
                (Some(later), State::Killed) => format!("{} later or more", duration(later)),
                (Some(later), _) => format!("{} later", duration(later)),
                (None, State::Running | State::Dumped) => "runs".to_owned(),
                (None, _) => "-".to_owned(),
            },
            job.finding().verdict.words().to_owned(),
        ]
    });
    page.table(">pid|rank|host|job|ended|>died|verdict", rows.collect());
}

/// The device's bytes at the failure, which sum to the device; and those of the limit if it refused the request.
fn ledger(page: &mut Page, answer: &Answer, failure: &Failure) {
    let (job, scene, shortage) = (answer.job, failure.scene, &failure.shortage);
    if let Some(parts) = &shortage.parts {
        page.heading(format!("Device {} at {}", scene.device, duration(scene.time_ns)));
        page.table(TITLES, rows(answer, parts.whose(), parts.total));
        if let (Some(layer), Some(shown)) = (job.header.layer(), shortage.shown) {
            let [layer, free, total] = [printable(layer, 200), size(shown.free), size(shown.total)];
            page.line(match parts.of_layer {
                true => format!("  total and free are what a layer showed, {layer}; the device itself may have more"),
                false => format!("  total and free are the driver's; a layer, {layer}, showed {free} free of {total}"),
            });
        }
    }
    if shortage.largest_cached > 0 {
        page.line(format!("  largest cached block {}", size(shortage.largest_cached)));
    }
    let Some(allowance) = &shortage.allowance else { return };
    let whose = if allowance.group { "group" } else { "process" };
    page.heading(format!("Limit of the {whose}, {}", size(allowance.limit)));
    let mut rows = vec![row(format!("{} this process", job.header.pid), "held", allowance.own)];
    let members = scene
        .processes
        .iter()
        .filter(|process| process.told_by == Teller::Account);
    rows.extend(members.map(|process| row(process_name(process), "held", process.bytes.unwrap_or(0))));
    if allowance.group {
        rows.push(row("group".to_owned(), "used in all", allowance.used));
    }
    rows.push(row(String::new(), "left", allowance.room()));
    page.table(TITLES, rows);
}

const TITLES: &str = "who|what|>size|>bytes";

fn row(who: String, what: &str, bytes: impl TryInto<i64>) -> Vec<String> {
    let bytes = bytes.try_into().unwrap_or(i64::MAX);
    let exact = format!("{}{}", if bytes < 0 { "-" } else { "" }, count(bytes.unsigned_abs()));
    vec![who, what.to_owned(), difference(bytes), exact]
}

/// The parts of what belongs to `whose`, which has `total` bytes.
fn rows(answer: &Answer, whose: &str, total: u64) -> Vec<Vec<String>> {
    let job = answer.job;
    let own = format!("{} {}", job.header.pid, printable(&job.title(), 24));
    let mut rows: Vec<_> = (answer.parts.iter())
        .map(|part| row(part.who.clone().unwrap_or_default(), part.name, part.bytes))
        .collect();
    rows[0][0] = own;
    let unknown = rows.len() - 2;
    rows[unknown][0] = format!("the {whose}");
    rows.push(row(String::new(), "in all", total));
    rows
}
