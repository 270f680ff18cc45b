//! The text of `replay`: a table.

use super::{Played, Row};
use crate::render::format;
use crate::render::text_or_json::Page;
use crate::replay::Trace;

pub fn show(page: &mut Page, played: &Played) {
    let (trace, setup) = (played.trace, played.setup);
    let requests = match trace.requests.len() {
        1 => "1 request".to_owned(),
        several => format!("{} requests and frees", format::count(several as u64)),
    };
    let long = trace
        .duration_ns
        .map_or(String::new(), |ns| format!(", {} long", format::duration(ns)));
    let [live, device] = [trace.peak_live, setup.device_memory].map(format::size);
    page.line(format!(
        "{}: {requests}, peak live {live}{long}, on a device of {device}",
        played.name
    ));
    if setup.repetitions > 1 || setup.lag_ns > 0 {
        let (times, ahead) = (format::times(setup.repetitions), format::duration(setup.lag_ns));
        page.line(format!("played {times}; the host runs {ahead} ahead of the GPU"));
    }
    page.line(format!("prices of driver calls: {}", played.price_table));
    if trace.unmatched > 0 {
        page.line(format!(
            "{} do not match the rest (an address allocated twice, or freed without an allocation): the figures may be wrong",
            format::count(trace.unmatched)
        ));
    }
    trace.notes.iter().for_each(|note| page.line(note));
    const HEADS: &str = "strategy|>peak reserved|>utilisation|>driver calls|>driver time|>waits to allocate|>to free|>waiting\
                         |>of trace|>smallest device|fits";
    let rows = played.rows.iter().map(|row| cells(row, trace));
    let not_known = played.not_known.iter().map(|&(name, why)| {
        let mut cells = vec!["-".to_owned(); HEADS.split('|').count()];
        let last = cells.len() - 1;
        (cells[0], cells[last]) = (name.to_owned(), format!("not known: {why}"));
        cells
    });
    page.table(HEADS, rows.chain(not_known).collect());
}

fn cells(row: &Row, trace: &Trace) -> Vec<String> {
    let outcome = &row.outcome;
    let bill = outcome.bill();
    let least = if trace.is_at_least() { "at least " } else { "" };
    let fits = match outcome.failed {
        0 if trace.is_at_least() => "what was recorded".to_owned(),
        0 => "yes".to_owned(),
        1 => "no: 1 request failed".to_owned(),
        failed => format!("no: {} requests failed", format::count(failed)),
    };
    vec![
        outcome.name.to_owned(),
        format!("{least}{}", format::size(outcome.peak_reserved)),
        outcome
            .utilisation(trace)
            .map_or("-".to_owned(), |utilisation| format!("{utilisation:.3}")),
        format::count(bill.driver_calls()),
        format::duration(bill.driver_ns),
        format::count(bill.waits_in_allocations),
        format::count(bill.waits_in_frees),
        format::duration(bill.waited_ns),
        format::percent(outcome.share_of_trace(trace)),
        row.smallest
            .map_or("-".to_owned(), |bytes| format!("{least}{}", format::enough(bytes))),
        fits,
    ]
}
