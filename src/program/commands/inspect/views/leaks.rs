//! `--leaks`: what still lives at the end, and when it came.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::holders::{device_name, frames, title};
use super::study::Study;
use crate::analysis::came::Came;
use crate::analysis::floors::Growth;
use crate::analysis::live_set::{By, Holder, Key};
use crate::render::format::{count, duration, size};
use crate::render::page::Page;

/// When the allocations of a holder came: in the job's time, and in the time in which the device's live bytes grew.
#[derive(Clone, Copy, Default)]
struct Stayed {
    came: Came,
    grew: Came,
}

impl Stayed {
    fn grow(&mut self, time_ns: u64, growth: Option<Growth>) {
        if let Some(growth) = growth
            && let Some(after_ns) = time_ns.checked_sub(growth.from_ns).filter(|_| time_ns <= growth.to_ns)
        {
            self.grew.add(after_ns, growth.to_ns - growth.from_ns);
        }
    }

    /// Whether they may be a leak. A job may load its data for a while before it leaks.
    fn again_and_again(self) -> bool {
        self.came.again_and_again() || self.grew.again_and_again()
    }
}

/// Writes what lives at the end. What came again and again until the end looks like a leak; what came once is mostly
/// parameters and caches.
pub fn show(page: &mut Page, study: &Study, by: Option<By>, top: usize) {
    let ended_ns = study.ended_ns().max(1);
    let served_until_ns = study.served_until_ns().max(1);
    let mut devices = Vec::new();
    for set in study.end.devices.iter().filter(|set| !set.live.is_empty()) {
        let (by, why) = study.grouping(by, &set.live);
        let growth = study.growth(set.device);
        let mut came: BTreeMap<Key, Stayed> = BTreeMap::new();
        for live in &set.live {
            let of_key = came.entry(Key::of(live, by)).or_default();
            of_key.came.add(live.time_ns, served_until_ns);
            of_key.grow(live.time_ns, growth);
        }
        // What has the same name is one holder.
        let mut named: BTreeMap<String, (Stayed, Holder)> = BTreeMap::new();
        for holder in set.holders(by) {
            let came = came[&holder.key];
            named
                .entry(study.labels.key(holder.key))
                .and_modify(|(known, sum)| {
                    known.came.join(came.came);
                    known.grew.join(came.grew);
                    sum.bytes = sum.bytes.saturating_add(holder.bytes);
                    sum.count += holder.count;
                    sum.oldest_ns = sum.oldest_ns.min(holder.oldest_ns);
                })
                .or_insert((came, holder));
        }
        let mut holders: Vec<(Stayed, Holder)> = named.into_values().collect();
        holders.sort_by_key(|(came, holder)| {
            let suspect = came.again_and_again();
            (std::cmp::Reverse(suspect), std::cmp::Reverse(holder.bytes))
        });
        let suspects = holders.iter().filter(|(came, _)| came.again_and_again());
        let suspected: u64 = suspects.map(|(_, holder)| holder.bytes).fold(0, u64::saturating_add);
        page.heading(format!(
            "{}: {} in {} allocations live at the end; {} of it came again and again and stayed",
            device_name(set.device),
            size(set.allocated),
            count(set.live.len() as u64),
            if suspected > 0 {
                size(suspected)
            } else {
                "none".to_owned()
            },
        ));
        if let Some(why) = why {
            page.line(why);
        }
        let row = |(came, holder): &(Stayed, Holder)| {
            vec![
                size(holder.bytes),
                count(holder.count),
                duration(ended_ns.saturating_sub(holder.oldest_ns)),
                came.came.drawn(),
                if came.again_and_again() { "leak?" } else { "" }.to_owned(),
                study.label(holder.key),
            ]
        };
        let titles = ["bytes", "count", "age", "came", "", title(by)];
        page.table(&titles, &[0, 1, 2], holders.iter().take(top).map(row).collect());
        let grew = |(came, _): &(Stayed, Holder)| came.grew.again_and_again() && !came.came.again_and_again();
        if let Some(growth) = growth.filter(|_| holders.iter().any(grew)) {
            page.line(format!(
                "Live bytes grew from {} to {}: what came again and again in this time counts",
                duration(growth.from_ns),
                duration(growth.to_ns)
            ));
        }
        let shown: Vec<Value> = (holders.iter())
            .map(|(came, holder)| {
                json!({
                    "name": study.labels.key(holder.key),
                    "stack": frames(study, holder.key),
                    "bytes": holder.bytes,
                    "count": holder.count,
                    "oldest_ns": holder.oldest_ns,
                    "came_in_tenths": came.came.tenths(),
                    "suspect": came.again_and_again(),
                })
            })
            .collect();
        devices.push(json!({
            "device": set.device,
            "allocated": set.allocated,
            "count": set.live.len(),
            "suspected_bytes": suspected,
            "holders": shown,
        }));
    }
    match devices.is_empty() {
        true => page.line("Nothing lives at the end."),
        false if served_until_ns < ended_ns => page.line(
            "came: in which tenths of the time until the last request that was served the live allocations were made",
        ),
        false => page.line("came: in which tenths of the job's time the live allocations were made"),
    }
    page.json("leaks", json!({ "devices": devices }));
}
