//! Many processes of one job: their holders together, and the one whose peak differs from the others.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::holders::{Named, named, title};
use super::study::Study;
use crate::analysis::live_set::{By, DeviceSet};
use crate::render::format::{count, percent, size};
use crate::render::page::Page;

/// A process whose peak differs by more than this from the median is odd.
const ODD_SHARE: f64 = 0.05;

/// The holders of one name in all processes.
#[derive(Default)]
struct Merged {
    sum: Named,
    /// The number of processes that have some.
    processes: u64,
    least: u64,
    most: u64,
}

/// Writes what held the most at the peak of each process, all processes together.
pub fn merged(page: &mut Page, studies: &[Study], by: Option<By>, top: usize) {
    let devices = |study: &Study| -> Vec<DeviceSet> {
        let devices = study.peak.devices.iter().filter(|set| set.device >= 0);
        devices.cloned().collect()
    };
    let all: Vec<_> = studies.iter().flat_map(devices).flat_map(|set| set.live).collect();
    let Some(first) = studies.first() else { return };
    let (by, why) = first.grouping(by, &all);
    if let Some(why) = why {
        page.line(why);
    }
    let mut names: BTreeMap<String, Merged> = BTreeMap::new();
    for study in studies {
        let mut own: BTreeMap<String, Named> = BTreeMap::new();
        for set in devices(study) {
            for (name, part) in named(study, &set, by) {
                let named = own.entry(name).or_default();
                named.bytes = named.bytes.saturating_add(part.bytes);
                named.count += part.count;
            }
        }
        for (name, part) in own {
            let merged = names.entry(name).or_insert(Merged {
                least: u64::MAX,
                ..Merged::default()
            });
            merged.sum.bytes = merged.sum.bytes.saturating_add(part.bytes);
            merged.sum.count += part.count;
            merged.processes += 1;
            merged.least = merged.least.min(part.bytes);
            merged.most = merged.most.max(part.bytes);
        }
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, merged)| std::cmp::Reverse(merged.sum.bytes));
    page.heading(format!(
        "{} processes, each at its peak: what held the most",
        count(studies.len() as u64)
    ));
    let row = |(name, merged): &(String, Merged)| {
        vec![
            size(merged.sum.bytes),
            count(merged.sum.count),
            count(merged.processes),
            size(merged.least),
            size(merged.most),
            name.clone(),
        ]
    };
    let titles = ["bytes", "count", "processes", "least of one", "most of one", title(by)];
    page.table(&titles, &[0, 1, 2, 3, 4], names.iter().take(top).map(row).collect());
    let odd = odd(studies.iter().map(|study| (study.title(), peak(study))).collect());
    if let Some(odd) = &odd {
        page.line(odd.words());
    }
    let told = names.iter().map(|(name, merged)| {
        json!({
            "name": name,
            "bytes": merged.sum.bytes,
            "count": merged.sum.count,
            "processes": merged.processes,
            "least_of_one": merged.least,
            "most_of_one": merged.most,
        })
    });
    page.json(
        "merged",
        json!({
            "processes": studies.len(),
            "by": title(by),
            "holders": told.collect::<Value>(),
            "odd_one_out": odd.map(|odd| json!({ "process": odd.name, "peak": odd.peak, "median": odd.median })),
        }),
    );
}

/// The allocated bytes of a process at the peak of each device.
pub fn peak(study: &Study) -> u64 {
    let devices = study.peak.devices.iter().filter(|set| set.device >= 0);
    devices.map(|set| set.allocated).fold(0, u64::saturating_add)
}

/// The process whose peak is farthest from that of the others.
pub struct Odd {
    name: String,
    peak: u64,
    median: u64,
    processes: usize,
}

impl Odd {
    pub fn words(&self) -> String {
        let more = self.peak as f64 / self.median.max(1) as f64 - 1.0;
        format!(
            "The odd one out is {}: its peak of {} is {} {} than the median of {} processes, {}.",
            self.name,
            size(self.peak),
            percent(Some(more.abs())),
            if more > 0.0 { "higher" } else { "lower" },
            count(self.processes as u64),
            size(self.median),
        )
    }
}

/// `None` if there are fewer than three processes, or if all are alike.
pub fn odd(mut peaks: Vec<(String, u64)>) -> Option<Odd> {
    if peaks.len() < 3 {
        return None;
    }
    peaks.sort_by_key(|(_, peak)| *peak);
    let processes = peaks.len();
    let median = peaks[processes / 2].1;
    let (name, peak) = peaks.into_iter().max_by_key(|(_, peak)| peak.abs_diff(median))?;
    let share = peak.abs_diff(median) as f64 / median.max(1) as f64;
    (share > ODD_SHARE).then_some(Odd {
        name,
        peak,
        median,
        processes,
    })
}
