//! `--top` and `--at`: what held the most at a moment. `--leaks`: what still lives at the end, and when it came.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::study::Study;
use super::when::When;
use crate::analysis::came::Came;
use crate::analysis::floors::Growth;
use crate::analysis::job::LoadError;
use crate::analysis::live_set::{By, DeviceSet, Holder, Key, LiveSet, Moment};
use crate::render::format::{count, duration, percent, size};
use crate::render::page::Page;

/// The allocations of one name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Named {
    pub bytes: u64,
    pub requested: u64,
    pub count: u64,
    pub oldest_ns: u64,
}

/// The holders by name, most bytes first. Several stacks of one line of code have one name.
pub fn named(study: &Study, set: &DeviceSet, by: By) -> Vec<(String, Named)> {
    let mut names: BTreeMap<String, Named> = BTreeMap::new();
    for holder in set.holders(by) {
        let named = names.entry(study.label(holder.key)).or_insert(Named {
            oldest_ns: u64::MAX,
            ..Named::default()
        });
        named.bytes = named.bytes.saturating_add(holder.bytes);
        named.requested = named.requested.saturating_add(holder.requested);
        named.count += holder.count;
        named.oldest_ns = named.oldest_ns.min(holder.oldest_ns);
    }
    if set.graphs > 0 {
        let graphs = Named {
            bytes: set.graphs,
            requested: set.graphs,
            count: 1,
            oldest_ns: set.time_ns,
        };
        names.insert("memory of launched graphs".to_owned(), graphs);
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, named)| std::cmp::Reverse(named.bytes));
    names
}

/// What was live at the moment that the user named. The error says why there is no such moment.
pub fn set_at(study: &Study, when: &When) -> Result<Result<LiveSet, String>, LoadError> {
    let missing = |study: &Study| study.find(when).err();
    Ok(match when {
        When::Peak => Ok(study.peak.clone()),
        When::End => Ok(study.end.clone()),
        When::OutOfMemory => study.failure.clone().ok_or_else(|| missing(study).unwrap_or_default()),
        When::Start => Ok(LiveSet::default()),
        When::Time(time_ns) => match missing(study) {
            None => Ok(first(study.at(&[Moment::Time(*time_ns)])?)),
            Some(why) => Err(why),
        },
        When::Mark(name) => {
            let stacks = study.labels.stacks();
            let mut marks = study.landmarks.marks.iter().rev();
            let text = marks.find(|mark| stacks.and_then(|stacks| stacks.text(mark.text)) == Some(name));
            match (text, missing(study)) {
                (Some(mark), None) => Ok(first(study.at(&[Moment::Mark(mark.text)])?)),
                (_, why) => Err(why.unwrap_or_default()),
            }
        }
    })
}

fn first(sets: Vec<Option<LiveSet>>) -> LiveSet {
    sets.into_iter().next().flatten().unwrap_or_default()
}

/// Writes what held the most at a moment on each device. Returns why there is no such moment, if there is none.
pub fn show(
    page: &mut Page,
    study: &Study,
    when: &When,
    by: Option<By>,
    top: usize,
) -> Result<Option<String>, LoadError> {
    let set = match set_at(study, when)? {
        Ok(set) => set,
        Err(why) => {
            page.line(format!("There is no such moment: {why}"));
            page.json("at", json!({ "missing": why }));
            return Ok(Some(why));
        }
    };
    let mut devices = Vec::new();
    for device in &set.devices {
        if device.live.is_empty() && device.reserved == 0 && device.graphs == 0 {
            continue;
        }
        devices.push(one_device(page, study, device, when, by, top));
    }
    if devices.is_empty() {
        page.line("Nothing was allocated then.");
    }
    page.json("at", json!({ "devices": devices }));
    Ok(None)
}

fn one_device(page: &mut Page, study: &Study, set: &DeviceSet, when: &When, by: Option<By>, top: usize) -> Value {
    let (by, why) = study.grouping(by, &set.live);
    let names = named(study, set, by);
    let place = device_name(set.device);
    page.heading(format!(
        "{place} at {}, {}: {} allocated, {} requested, {} reserved",
        when.words(),
        duration(set.time_ns),
        size(set.allocated),
        size(set.requested),
        size(set.reserved),
    ));
    if let Some(why) = why {
        page.line(why);
    }
    let age = |named: &Named| duration(set.time_ns.saturating_sub(named.oldest_ns));
    let share = |bytes: u64| bytes as f64 / set.allocated.max(1) as f64;
    let row = |(name, named): &(String, Named)| {
        vec![
            size(named.bytes),
            percent(Some(share(named.bytes))),
            count(named.count),
            age(named),
            name.clone(),
        ]
    };
    let titles = ["bytes", "share", "count", "age", title(by)];
    page.table(&titles, &[0, 1, 2, 3], names.iter().take(top).map(row).collect());
    rest(page, &names, top);
    if by == By::Stack
        && let Some(share) = study.without_stacks(&set.live)
    {
        page.line(share);
    }
    let holders = set.holders(by).into_iter().map(|holder| {
        json!({
            "name": study.labels.key(holder.key),
            "stack": frames(study, holder.key),
            "bytes": holder.bytes,
            "requested": holder.requested,
            "count": holder.count,
            "oldest_ns": holder.oldest_ns,
        })
    });
    json!({
        "device": set.device,
        "time_ns": set.time_ns,
        "requested": set.requested,
        "allocated": set.allocated,
        "reserved": set.reserved,
        "free_inside": set.free_inside,
        "graphs": set.graphs,
        "by": title(by),
        "holders": holders.collect::<Value>(),
    })
}

/// Says what the table left out.
fn rest(page: &mut Page, names: &[(String, Named)], top: usize) {
    if names.len() > top {
        let bytes: u64 = names[top..]
            .iter()
            .map(|(_, named)| named.bytes)
            .fold(0, u64::saturating_add);
        page.line(format!(
            "   {} more: {}",
            count((names.len() - top) as u64),
            size(bytes)
        ));
    }
}

fn frames(study: &Study, key: Key) -> Value {
    let Key::Stack(number) = key else { return Value::Null };
    let frame = |frame: &journal::format::Frame| json!({ "file": &*frame.file, "line": frame.line, "function": &*frame.function });
    match study.labels.frames(number) {
        Ok(frames) => frames.iter().map(frame).collect(),
        Err(_) => Value::Null,
    }
}

pub fn device_name(device: i16) -> String {
    match device {
        base::cuda::HOST_DEVICE => "Host memory".to_owned(),
        device => format!("Device {device}"),
    }
}

/// The title of the column with the names.
pub fn title(by: By) -> &'static str {
    match by {
        By::Stack => "stack",
        By::Size => "size",
        By::Api => "api",
        By::Thread => "thread",
        By::Stream => "stream",
    }
}

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
pub fn leaks(page: &mut Page, study: &Study, by: Option<By>, top: usize) {
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
