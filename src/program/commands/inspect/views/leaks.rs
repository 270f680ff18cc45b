//! `--leaks`: what still lives at the end, and when it came.

use journal::format::{Amount, Reason};
use serde_json::{Value, json};

use super::holders_at::{device_name, frames};
use super::study::Study;
use crate::analysis::came::Came;
use crate::analysis::job::LoadError;
use crate::analysis::live_set::{self, By, DeviceSet, LiveSet, Named, by_name};
use crate::render::format::{amount, amount_json, at_least, count, duration, size};
use crate::render::text_or_json::Page;

/// The live allocations of a device at a moment, by holder, and which holders came again and again.
struct Found {
    by: By,
    why: Option<String>,
    holders: Vec<Named>,
    /// Bytes of the holders that came again and again, or else, if only all together did, what came after the first tenth. Of
    /// requests without a stack it is not known that none did.
    suspected: Amount,
    is_spread: bool,
}

impl Found {
    fn on(study: &Study, set: &DeviceSet, by: Option<By>, until_ns: u64) -> Found {
        let (by, why) = study.grouping(by, &set.live);
        let growth = study.growth(set.device);
        // A job may load its data for a while before it leaks.
        let span = growth.map_or((0, until_ns), |growth| (growth.from_ns, growth.to_ns));
        let mut holders = by_name(live_set::holders(&set.live, by, span), |holder| {
            study.labels.key(holder.key)
        });
        let all = holders
            .iter()
            .fold(Came::default(), |all, named| all.and(named.sum.came));
        holders.sort_by_key(|named| std::cmp::Reverse(named.sum.came.again_and_again()));
        let suspects = holders.iter().filter(|named| named.sum.came.again_and_again());
        let suspected = suspects.map(|named| named.sum.bytes).fold(0, u64::saturating_add);
        let is_spread = suspected == 0 && all.again_and_again();
        let begun_ns = span.0.max(until_ns / 10);
        let later = set.live.iter().filter(|live| live.time_ns > begun_ns);
        let later = later.map(|live| live.allocated).fold(0, u64::saturating_add);
        Found {
            by,
            why,
            holders,
            suspected: match suspected {
                0 if is_spread => Amount::AtMost(later),
                0 if !study.is_whole() => Amount::NotKnown(Reason::EventsLost),
                0 if study.without_stacks(&set.live).is_some() || study.job.tells_at_least() => {
                    Amount::NotKnown(Reason::NotAsked)
                }
                bytes => Amount::Exact(bytes),
            },
            is_spread,
        }
    }

    fn words(&self) -> String {
        let bytes = amount(self.suspected);
        match self.is_spread {
            true => format!(
                "{bytes} of it came bit by bit and stayed, as with a leak; no one {} did",
                self.by.name()
            ),
            false => format!("{bytes} of it came again and again and stayed"),
        }
    }

    fn shows_leak(&self) -> bool {
        matches!(self.suspected, Amount::Exact(1..) | Amount::AtMost(_))
    }
}

/// Writes what lives at the end, or what lived before the job freed it on its way out, if a leak shows there. What came again
/// and again until the end looks like a leak; what came once is mostly parameters and caches.
pub fn show(page: &mut Page, study: &Study, by: Option<By>, top: usize) -> Result<(), LoadError> {
    let ended_ns = study.ended_ns().max(1);
    let found = |set: &LiveSet, until_ns| -> Vec<(DeviceSet, Found)> {
        let devices = set.devices.iter().filter(|set| !set.live.is_empty());
        devices
            .map(|set| (set.clone(), Found::on(study, set, by, until_ns)))
            .collect()
    };
    let shows_leak = |found: &[(DeviceSet, Found)]| found.iter().any(|(_, found)| found.shows_leak());
    let mut shown = found(&study.end, study.served_until_ns().max(1));
    let mut when = "at the end".to_owned();
    if let Some((cleared_ns, set)) = (!shows_leak(&shown))
        .then(|| study.before_clean_up())
        .transpose()?
        .flatten()
    {
        let before = found(&set, cleared_ns.max(1));
        if shows_leak(&before) {
            shown = before;
            when = format!("at {}, before the job freed it on its way out", duration(cleared_ns));
        }
    }
    let older = at_least(study.job.has_snapshots());
    let mut devices = Vec::new();
    for (set, found) in &shown {
        page.heading(format!(
            "{}: {} in {} allocations live {when}; {}",
            device_name(set.device),
            size(set.allocated),
            count(set.live.len() as u64),
            found.words()
        ));
        if let Some(why) = &found.why {
            page.line(why.clone());
        }
        let row = |Named { sum, .. }: &Named| {
            vec![
                size(sum.bytes),
                count(sum.count),
                format!("{older}{}", duration(ended_ns.saturating_sub(sum.oldest_ns))),
                if sum.came.again_and_again() { "leak?" } else { "" }.to_owned(),
                study.label(sum.key),
            ]
        };
        let titles = format!(">bytes|>count|>age||{}", found.by.name());
        page.table(&titles, found.holders.iter().take(top).map(row).collect());
        let holders: Vec<Value> = (found.holders.iter())
            .map(|Named { name, sum }| {
                json!({
                    "name": name,
                    "stack": frames(study, sum.key),
                    "bytes": sum.bytes,
                    "count": sum.count,
                    "oldest_ns": sum.oldest_ns,
                    "suspect": sum.came.again_and_again(),
                })
            })
            .collect();
        devices.push(json!({
            "device": set.device,
            "allocated": set.allocated,
            "count": set.live.len(),
            "suspected_bytes": amount_json(found.suspected),
            "of_several_holders": found.is_spread,
            "holders": holders,
        }));
    }
    if devices.is_empty() {
        page.line(study.of_what_is_left(
            "Nothing lives at the end.",
            "In what is left of the journal nothing lives at the end.",
        ));
    }
    page.json("leaks", json!({ "devices": devices }));
    Ok(())
}
