//! Chooses the groups of allocations that the page shows: those that held most, and those through which most bytes
//! went. The others are summed up, so that the bytes of all groups are those of the ledger.

use std::collections::BTreeMap;

use super::data::{Group, Named};
use crate::analysis::holdings::{At, Held, Series, Size};
use crate::analysis::names::{api_name, class_name};

/// `stack` gives the place of a stack in the report's list.
pub fn select(
    mut series: Vec<Series>,
    at: &[At],
    named: &[Named],
    most: usize,
    stack: &mut impl FnMut(u32) -> Option<usize>,
) -> Vec<Group> {
    // A group that matters at a named moment comes before one that was large for a while.
    let at_named = |series: &Series| {
        let held = named.iter().map(|named| series.at(named.moment).bytes);
        held.max().unwrap_or(0)
    };
    series.sort_by_cached_key(|series| std::cmp::Reverse((at_named(series), series.most(), series.ever())));
    let mut rest = series.split_off(most.min(series.len()));
    rest.sort_by_cached_key(|series| std::cmp::Reverse(series.ever()));
    let small = rest.split_off((most / 8).min(rest.len()));
    series.extend(rest);
    let mut groups: Vec<Group> = series.iter().map(|series| shown(series, stack)).collect();
    groups.extend(sums(&small, at.len()));
    groups
}

fn shown(series: &Series, stack: &mut impl FnMut(u32) -> Option<usize>) -> Group {
    let group = series.group;
    let (size, at_least) = match group.size {
        Size::Any => (None, false),
        Size::Exactly(bytes) => (Some(bytes), false),
        Size::From(bytes) => (Some(bytes), true),
    };
    Group {
        class: class_name(group.class),
        api: match group.api {
            0 => String::new(),
            api => api_name(api),
        },
        tid: group.tid,
        stream: group.stream,
        stack: stack(group.stack),
        size,
        at_least,
        ..columns(group.device, &series.changes)
    }
}

/// The sum of the groups of each device.
fn sums(small: &[Series], moments: usize) -> Vec<Group> {
    let mut devices: BTreeMap<i16, Vec<&Series>> = BTreeMap::new();
    for series in small {
        devices.entry(series.group.device).or_default().push(series);
    }
    let sum = |(device, list): (i16, Vec<&Series>)| {
        let at = |moment| {
            list.iter().fold(Held::default(), |sum, series| {
                let held = series.at(moment);
                Held {
                    bytes: sum.bytes.saturating_add(held.bytes),
                    count: sum.count + held.count,
                    ever_bytes: sum.ever_bytes.saturating_add(held.ever_bytes),
                    ever_count: sum.ever_count + held.ever_count,
                    oldest_ns: None,
                }
            })
        };
        let mut changes: Vec<(usize, Held)> = (0..moments).map(|moment| (moment, at(moment))).collect();
        changes.dedup_by_key(|(_, held)| *held);
        Group {
            rest: true,
            ..columns(device, &changes)
        }
    };
    devices.into_iter().map(sum).collect()
}

fn columns(device: i16, changes: &[(usize, Held)]) -> Group {
    let column = |figure: fn(&Held) -> u64| changes.iter().map(|(_, held)| figure(held)).collect();
    Group {
        device,
        moments: changes.iter().map(|&(moment, _)| moment as u64).collect(),
        bytes: column(|held| held.bytes),
        count: column(|held| held.count),
        ever_bytes: column(|held| held.ever_bytes),
        oldest_us: column(|held| held.oldest_ns.map_or(0, |time_ns| time_ns / 1000)),
        ..Group::default()
    }
}
