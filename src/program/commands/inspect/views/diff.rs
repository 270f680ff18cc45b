//! `--diff OTHER`: the peaks of two jobs, and what held more or less at them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::holders_at::named;
use super::study::Study;
use crate::analysis::live_set::{By, LiveSet, Named};
use crate::analysis::measurements::minus;
use crate::render::format::{count, difference, duration, percent, size, size_or_not_known};
use crate::render::text_or_json::Page;

/// How much the second job's peak is above the first's; negative if it is below.
pub fn rise(before: u64, after: u64) -> f64 {
    match (before, after) {
        (0, 0) => 0.0,
        (0, _) => f64::INFINITY,
        (before, after) => after as f64 / before as f64 - 1.0,
    }
}

/// The highest process of each side is compared. Returns the rise of the peak of allocated bytes, or that of reserved
/// bytes if it is more.
pub fn show<'a>(page: &mut Page, base: &'a [Study], other: &'a [Study], by: Option<By>, top: usize) -> Option<f64> {
    let highest = |studies: &'a [Study]| studies.iter().rev().max_by_key(|study| allocated(&study.peak));
    let (before, after) = (highest(base)?, highest(other)?);
    let live = |study: &Study| -> Vec<_> { study.peak.devices.iter().flat_map(|set| set.live.clone()).collect() };
    let all = [live(before), live(after)].concat();
    let (by, why) = before.grouping(by, &all);
    page.heading(format!("{} compared with {}", after.title(), before.title()));
    if base.len() > 1 || other.len() > 1 {
        page.line(format!(
            "Of {} and {} processes, those with the highest peaks are compared.",
            count(base.len() as u64),
            count(other.len() as u64)
        ));
    }
    if let Some(why) = why {
        page.line(why);
    }
    let reserved = |study: &Study| -> Option<u64> {
        let devices = study.job.ledger.devices.iter().filter(|(device, _)| **device >= 0);
        let of = |(_, ledger)| study.job.knows_reserved(ledger).then_some(ledger.all.reserved.peak);
        devices
            .map(of)
            .try_fold(0u64, |sum, more| Some(sum.saturating_add(more?)))
    };
    let both = [before, after];
    let bytes = [
        ("peak allocated", both.map(|study| Some(allocated(&study.peak)))),
        ("peak reserved", both.map(reserved)),
        ("live at the end", both.map(|study| Some(allocated(&study.end)))),
    ];
    let row = |&(name, sides): &(&str, [Option<u64>; 2])| {
        let [Some(before), Some(after)] = sides else {
            let [before, after] = sides.map(size_or_not_known);
            return vec![name.to_owned(), before, after, String::new(), String::new()];
        };
        let rise = rise(before, after);
        let share = if rise.is_finite() {
            percent(Some(rise))
        } else {
            "new".to_owned()
        };
        vec![name.to_owned(), size(before), size(after), signed(before, after), share]
    };
    let mut rows: Vec<_> = bytes.iter().map(row).collect();
    let times = both.map(|study| study.job.duration_ns);
    rows.push(vec![
        "duration".into(),
        duration(times[0]),
        duration(times[1]),
        String::new(),
        percent(Some(rise(times[0], times[1])).filter(|rise| rise.is_finite())),
    ]);
    page.table("|>before|>after|>change|>", rows);

    let mut names: BTreeMap<String, [(u64, u64); 2]> = BTreeMap::new();
    for (side, study) in [before, after].into_iter().enumerate() {
        for set in study.peak.devices.iter().filter(|set| set.device >= 0) {
            for Named { name, sum: holder } in named(study, set, by) {
                let sum = &mut names.entry(name).or_default()[side];
                *sum = (sum.0.saturating_add(holder.bytes), sum.1 + holder.count);
            }
        }
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, [before, after])| std::cmp::Reverse(after.0.abs_diff(before.0)));
    let changed: Vec<_> = names.iter().filter(|(_, [before, after])| before != after).collect();
    page.heading("Holders at the peak");
    let row = |&&(ref name, [before, after]): &&(String, [(u64, u64); 2])| {
        vec![
            signed(before.0, after.0),
            size(before.0),
            size(after.0),
            count(before.1),
            count(after.1),
            name.clone(),
        ]
    };
    if changed.is_empty() {
        page.line("All holders have the same bytes.");
    } else {
        let titles = format!(">change|>before|>after|>count before|>after|{}", by.name());
        page.table(&titles, changed.iter().take(top).map(row).collect());
    }
    let told = names.iter().map(|(name, [before, after])| {
        json!({
            "name": name,
            "change": minus(after.0, before.0),
            "before": before.0,
            "after": after.0,
            "count_before": before.1,
            "count_after": after.1,
        })
    });
    let rises = bytes.map(|(_, sides)| match sides {
        [Some(before), Some(after)] => rise(before, after),
        _ => f64::NAN,
    });
    let side = |study: &Study| {
        json!({
            "path": study.job.path.to_string_lossy(),
            "peak_allocated": allocated(&study.peak),
            "peak_reserved": reserved(study),
            "live_at_end": allocated(&study.end),
            "duration_ns": study.job.duration_ns,
            "events": study.job.ledger.events,
            "failures": study.job.ledger.failed_calls(),
        })
    };
    page.json(
        "diff",
        json!({
            "before": side(before),
            "after": side(after),
            "by": by.name(),
            "peak_allocated_rise": rises[0].is_finite().then_some(rises[0]),
            "peak_reserved_rise": rises[1].is_finite().then_some(rises[1]),
            "holders": told.collect::<Value>(),
        }),
    );
    Some(rises[0].max(rises[1]))
}

/// The allocated bytes of a process on all devices.
fn allocated(moment: &LiveSet) -> u64 {
    let devices = moment.devices.iter().filter(|set| set.device >= 0);
    devices.map(|set| set.allocated).fold(0, u64::saturating_add)
}

/// A difference with its sign, also if it is positive.
fn signed(before: u64, after: u64) -> String {
    let text = difference(minus(after, before));
    if after > before { format!("+{text}") } else { text }
}
