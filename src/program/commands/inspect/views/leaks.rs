//! `--leaks`: what still lives at the end, and when it came.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::holders_at::{device_name, frames, title};
use super::study::Study;
use crate::analysis::came::Came;
use crate::analysis::floors::Growth;
use crate::analysis::live_set::{By, Key, Named, by_name};
use crate::render::format::{count, duration, size};
use crate::render::text_or_json::Page;

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

    fn of_all(several: impl Iterator<Item = Stayed> + Clone) -> Stayed {
        Stayed {
            came: Came::of_all(several.clone().map(|one| one.came)),
            grew: Came::of_all(several.map(|one| one.grew)),
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
        let mut stayed: BTreeMap<Key, Stayed> = BTreeMap::new();
        for live in &set.live {
            let of_key = stayed.entry(Key::for_live(live, by)).or_default();
            of_key.came.add(live.time_ns, served_until_ns);
            of_key.grow(live.time_ns, growth);
        }
        let named = by_name(set.holders(by), |holder| study.labels.key(holder.key));
        let mut holders: Vec<(Stayed, Named)> = (named.into_iter())
            .map(|named| (Stayed::of_all(named.keys.iter().map(|key| stayed[key])), named))
            .collect();
        holders.sort_by_key(|(stayed, _)| std::cmp::Reverse(stayed.again_and_again()));
        let suspects = holders.iter().filter(|(stayed, _)| stayed.again_and_again());
        let suspected = suspects.map(|(_, named)| named.sum.bytes).fold(0, u64::saturating_add);
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
        let row = |(stayed, Named { sum, .. }): &(Stayed, Named)| {
            vec![
                size(sum.bytes),
                count(sum.count),
                duration(ended_ns.saturating_sub(sum.oldest_ns)),
                stayed.came.drawn(),
                if stayed.again_and_again() { "leak?" } else { "" }.to_owned(),
                study.label(sum.key),
            ]
        };
        let titles = ["bytes", "count", "age", "came", "", title(by)];
        page.table(&titles, &[0, 1, 2], holders.iter().take(top).map(row).collect());
        let grew = |(stayed, _): &(Stayed, Named)| stayed.grew.again_and_again() && !stayed.came.again_and_again();
        if let Some(growth) = growth.filter(|_| holders.iter().any(grew)) {
            page.line(format!(
                "Live bytes grew from {} to {}: what came again and again in this time counts",
                duration(growth.from_ns),
                duration(growth.to_ns)
            ));
        }
        let shown: Vec<Value> = (holders.iter())
            .map(|(stayed, Named { name, sum, .. })| {
                json!({
                    "name": name,
                    "stack": frames(study, sum.key),
                    "bytes": sum.bytes,
                    "count": sum.count,
                    "oldest_ns": sum.oldest_ns,
                    "came_in_tenths": stayed.came.drawn(),
                    "suspect": stayed.again_and_again(),
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
    page.line(if devices.is_empty() {
        "Nothing lives at the end."
    } else if served_until_ns < ended_ns {
        "came: in which tenths of the time until the last request that was served the live allocations were made"
    } else {
        "came: in which tenths of the job's time the live allocations were made"
    });
    page.json("leaks", json!({ "devices": devices }));
}
