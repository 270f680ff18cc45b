//! `--top` and `--at`: what held the most at a moment.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::study::{MomentError, Study};
use super::when::When;
use crate::analysis::live_set::{By, DeviceSet, Key};
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

/// Writes what held the most at a moment on each device.
pub fn show(page: &mut Page, study: &Study, when: &When, by: Option<By>, top: usize) -> Result<(), MomentError> {
    let set = study.set_at(when).inspect_err(|error| {
        page.line(format!("There is no such moment: {error}"));
        page.json("at", json!({ "missing": error.to_string() }));
    })?;
    let is_used = |device: &&DeviceSet| !device.live.is_empty() || device.reserved > 0 || device.graphs > 0;
    let used = set.devices.iter().filter(is_used);
    let devices: Vec<Value> = used
        .map(|device| one_device(page, study, device, when, by, top))
        .collect();
    if devices.is_empty() {
        page.line("Nothing was allocated then.");
    }
    page.json("at", json!({ "devices": devices }));
    Ok(())
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

pub fn frames(study: &Study, key: Key) -> Value {
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
