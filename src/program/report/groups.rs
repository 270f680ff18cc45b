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
        // Changes of the sum at each moment, which is what each group changes by.
        let mut changes = vec![[0i128; 4]; moments];
        for series in list {
            let mut before = Held::default();
            for &(moment, held) in &series.changes {
                let figures = |held: Held| [held.bytes, held.count, held.ever_bytes, held.ever_count].map(i128::from);
                let steps = figures(held).into_iter().zip(figures(before));
                for (change, (now, before)) in changes[moment].iter_mut().zip(steps) {
                    *change += now - before;
                }
                before = held;
            }
        }
        let mut sum = [0i128; 4];
        let mut list = Vec::new();
        for (moment, change) in changes.into_iter().enumerate().filter(|(_, change)| *change != [0; 4]) {
            for (sum, change) in sum.iter_mut().zip(change) {
                *sum += change;
            }
            let [bytes, count, ever_bytes, ever_count] = sum.map(|figure| u64::try_from(figure).unwrap_or(0));
            let held = Held {
                bytes,
                count,
                ever_bytes,
                ever_count,
                oldest_ns: None,
            };
            list.push((moment, held));
        }
        Group {
            rest: true,
            ..columns(device, &list)
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
        ever_count: column(|held| held.ever_count),
        oldest_us: column(|held| held.oldest_ns.map_or(0, |time_ns| time_ns / 1000)),
        ..Group::default()
    }
}
