//! `--leaks`: what still lives at the end, and when it came.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::holders_at::{device_name, frames, title};
use super::study::Study;
use crate::analysis::came::Came;
use crate::analysis::floors::Growth;
use crate::analysis::job::LoadError;
use crate::analysis::live_set::{By, DeviceSet, Key, LiveSet, Named, by_name};
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

/// What lives on a device at a moment, and what of it came again and again.
struct Found {
    by: By,
    why: Option<String>,
    growth: Option<Growth>,
    holders: Vec<(Stayed, Named)>,
    /// Bytes of the holders that came again and again, or else, if only all together did, what came after the first tenth.
    suspected: u64,
    is_spread: bool,
}

impl Found {
    fn on(study: &Study, set: &DeviceSet, by: Option<By>, until_ns: u64) -> Found {
        let (by, why) = study.grouping(by, &set.live);
        let growth = study.growth(set.device);
        let mut stayed: BTreeMap<Key, Stayed> = BTreeMap::new();
        for live in &set.live {
            let of_key = stayed.entry(Key::for_live(live, by)).or_default();
            of_key.came.add(live.time_ns, until_ns);
            of_key.grow(live.time_ns, growth);
        }
        let all = Stayed::of_all(stayed.values().copied());
        let named = by_name(set.holders(by), |holder| study.labels.key(holder.key));
        let mut holders: Vec<(Stayed, Named)> = (named.into_iter())
            .map(|named| (Stayed::of_all(named.keys.iter().map(|key| stayed[key])), named))
            .collect();
        holders.sort_by_key(|(stayed, _)| std::cmp::Reverse(stayed.again_and_again()));
        let suspects = holders.iter().filter(|(stayed, _)| stayed.again_and_again());
        let suspected = suspects.map(|(_, named)| named.sum.bytes).fold(0, u64::saturating_add);
        let is_spread = suspected == 0 && all.again_and_again();
        let later = set.live.iter().filter(|live| live.time_ns > until_ns / 10);
        Found {
            by,
            why,
            growth,
            holders,
            suspected: match is_spread {
                true => later.map(|live| live.allocated).fold(0, u64::saturating_add),
                false => suspected,
            },
            is_spread,
        }
    }

    /// What came again and again. Of requests without a stack it is never said that none did.
    fn words(&self, study: &Study, set: &DeviceSet) -> String {
        match (self.suspected, study.without_stacks(&set.live)) {
            (0, None) => "none of it came again and again and stayed".to_owned(),
            (0, Some(_)) => "not known whether some of it came again and again: not all have stacks".to_owned(),
            (bytes, _) if self.is_spread => format!(
                "{} of it came bit by bit and stayed, as with a leak; no one {} did",
                size(bytes),
                title(self.by)
            ),
            (bytes, _) => format!("{} of it came again and again and stayed", size(bytes)),
        }
    }
}

/// Writes what lives at the end, or what lived before the job freed it on its way out, if a leak shows there. What came again
/// and again until the end looks like a leak; what came once is mostly parameters and caches.
pub fn show(page: &mut Page, study: &Study, by: Option<By>, top: usize) -> Result<(), LoadError> {
    let ended_ns = study.ended_ns().max(1);
    let mut until_ns = study.served_until_ns().max(1);
    let found = |set: &LiveSet, until_ns| -> Vec<(DeviceSet, Found)> {
        let devices = set.devices.iter().filter(|set| !set.live.is_empty());
        devices
            .map(|set| (set.clone(), Found::on(study, set, by, until_ns)))
            .collect()
    };
    let shows_leak = |found: &[(DeviceSet, Found)]| found.iter().any(|(_, found)| found.suspected > 0);
    let mut shown = found(&study.end, until_ns);
    let mut when = "at the end".to_owned();
    if let Some((cleared_ns, set)) = (!shows_leak(&shown))
        .then(|| study.before_clean_up())
        .transpose()?
        .flatten()
    {
        let before = found(&set, cleared_ns.max(1));
        if shows_leak(&before) {
            (shown, until_ns) = (before, cleared_ns.max(1));
            when = format!("at {}, before the job freed it on its way out", duration(cleared_ns));
        }
    }
    let mut devices = Vec::new();
    for (set, found) in &shown {
        page.heading(format!(
            "{}: {} in {} allocations live {when}; {}",
            device_name(set.device),
            size(set.allocated),
            count(set.live.len() as u64),
            found.words(study, set)
        ));
        if let Some(why) = &found.why {
            page.line(why.clone());
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
        let titles = ["bytes", "count", "age", "came", "", title(found.by)];
        page.table(&titles, &[0, 1, 2], found.holders.iter().take(top).map(row).collect());
        let grew = |(stayed, _): &(Stayed, Named)| stayed.grew.again_and_again() && !stayed.came.again_and_again();
        if let Some(growth) = found.growth.filter(|_| found.holders.iter().any(grew)) {
            page.line(format!(
                "Live bytes grew from {} to {}: what came again and again in this time counts",
                duration(growth.from_ns),
                duration(growth.to_ns)
            ));
        }
        let holders: Vec<Value> = (found.holders.iter())
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
            "suspected_bytes": found.suspected,
            "of_several_holders": found.is_spread,
            "holders": holders,
        }));
    }
    page.line(if devices.is_empty() {
        "Nothing lives at the end."
    } else if until_ns < ended_ns {
        "came: in which tenths of the time until the last request that was served the live allocations were made"
    } else {
        "came: in which tenths of the job's time the live allocations were made"
    });
    page.json("leaks", json!({ "devices": devices }));
    Ok(())
}
