//! The overview of several jobs: a line for each process.

use std::path::Path;

use crate::analysis::device_ledger::Totals;
use crate::analysis::job::Job;
use crate::analysis::rank::rank;
use crate::render::format::{self, count, duration, printable, shown, size, size_or_not_known};
use crate::render::text_or_json::Page;

pub fn show(page: &mut Page, jobs: &[&Job]) {
    let mut rows = Vec::new();
    for job in jobs {
        let devices = job.devices();
        let ledgers = || devices.iter().filter_map(|(.., ledger)| *ledger);
        let sum = |bytes: fn(&Totals) -> u64| ledgers().map(|ledger| bytes(&ledger.all)).fold(0, u64::saturating_add);
        let knows_reserved = ledgers().all(|ledger| job.knows_reserved(ledger));
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
            match job.knows_times() {
                true => duration(job.duration_ns),
                false => "-".to_owned(),
            },
            format!(
                "{}{}",
                format::at_least(job.tells_at_least()),
                size(sum(|all| all.allocated.peak))
            ),
            size_or_not_known(knows_reserved.then(|| sum(|all| all.reserved.peak))),
            size(sum(|all| all.allocated.current)),
            count(job.ledger.failed_calls()),
            format::events_lost(job),
            damaged(job),
            shown(Path::new(job.path.file_name().unwrap_or_default())),
        ]);
    }
    page.heading(format!("{} processes", jobs.len()));
    const TITLES: &str = "pid|rank|job|strategy|ended|started|>duration|>peak alloc.|>peak res.|>live|>failures|>lost|>damaged\
                          |journal";
    page.table(TITLES, rows);
}

/// The number of damaged records, and whether the header is damaged.
fn damaged(job: &Job) -> String {
    match (job.damaged, job.header.damaged.is_empty()) {
        (records, true) => count(records),
        (0, false) => "header".to_owned(),
        (records, false) => format!("header, {}", count(records)),
    }
}
