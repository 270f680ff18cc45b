//! `--top` and `--at`: what held the most at a moment.

use serde_json::{Value, json};

use super::study::{MomentError, Study};
use super::when::When;
use crate::analysis::came::Came;
use crate::analysis::live_set::{By, DeviceSet, Holder, Key, Named, by_name};
use crate::analysis::names::frame_as_json;
use crate::render::format::{at_least, count, duration, percent, size, size_or_not_known};
use crate::render::text_or_json::Page;

/// The holders by name, most bytes first.
pub fn named(study: &Study, set: &DeviceSet, by: By) -> Vec<Named> {
    let mut holders = set.holders(by);
    holders.extend((set.graphs > 0).then_some(Holder {
        key: Key::Graphs,
        bytes: set.graphs,
        requested: set.graphs,
        count: 1,
        oldest_ns: set.time_ns,
        came: Came::default(),
    }));
    by_name(holders, |holder| study.label(holder.key))
}

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
        page.line(study.of_what_is_left(
            "Nothing was allocated then.",
            "In what is left of the journal nothing was allocated then.",
        ));
    }
    page.json("at", json!({ "devices": devices }));
    Ok(())
}

fn one_device(page: &mut Page, study: &Study, set: &DeviceSet, when: &When, by: Option<By>, top: usize) -> Value {
    let (by, why) = study.grouping(by, &set.live);
    let names = named(study, set, by);
    let place = device_name(set.device);
    let older = at_least(study.job.has_snapshots());
    let failed_on = matches!(when, When::OutOfMemory).then_some(set.device);
    let tensors = study.job.tensors.as_ref();
    let is_whole = tensors.is_none_or(|tensors| tensors.are_whole_at(set.time_ns, failed_on));
    let least = at_least(!is_whole);
    let ledger = study.job.ledger.devices.get(&set.device);
    let knows_reserved = ledger.is_some_and(|ledger| study.job.knows_reserved(ledger));
    let reserved = knows_reserved.then_some(set.reserved);
    page.heading(format!(
        "{place} at {}, {}: {least}{} allocated, {least}{} requested, {} reserved",
        when.words(),
        duration(set.time_ns),
        size(set.allocated),
        size(set.requested),
        size_or_not_known(reserved),
    ));
    if let Some(why) = why {
        page.line(why);
    }
    let shown_ns = tensors.and_then(|tensors| tensors.snapshot_before(set.time_ns));
    if let Some(at) = shown_ns.filter(|_| !is_whole).map(duration) {
        page.line(format!("PyTorch's tensors are those of its snapshot at {at}."));
    }
    let share = |bytes: u64| bytes as f64 / set.allocated.max(1) as f64;
    let row = |Named { name, sum, .. }: &Named| {
        vec![
            size(sum.bytes),
            percent(Some(share(sum.bytes))),
            count(sum.count),
            format!("{older}{}", duration(set.time_ns.saturating_sub(sum.oldest_ns))),
            name.clone(),
        ]
    };
    let titles = format!(">bytes|>share|>count|>age|{}", by.name());
    page.table(&titles, names.iter().take(top).map(row).collect());
    if names.len() > top {
        let rest = names[top..].iter().map(|named| named.sum.bytes);
        let (more, bytes) = (
            count((names.len() - top) as u64),
            size(rest.fold(0, u64::saturating_add)),
        );
        page.line(format!("   {more} more: {bytes}"));
    }
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
        "is_at_least": !is_whole,
        "reserved": reserved,
        "free_inside": reserved.map(|_| set.free_inside),
        "graphs": set.graphs,
        "by": by.name(),
        "holders": holders.collect::<Value>(),
    })
}

pub fn frames(study: &Study, key: Key) -> Value {
    let Key::Stack(number) = key else { return Value::Null };
    let frames = study.labels.frames(number);
    frames.map_or(Value::Null, |frames| frames.iter().map(frame_as_json).collect())
}

pub fn device_name(device: i16) -> String {
    match device {
        base::cuda::HOST_DEVICE => "Host memory".to_owned(),
        device => format!("Device {device}"),
    }
}
