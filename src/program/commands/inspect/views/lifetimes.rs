//! `--temporary`: how long allocations lived, which ones lived only shortly, and how often addresses were used again.

use serde_json::{Value, json};

use super::study::Study;
use crate::analysis::lifetimes::{Churn, LIMITS_NS, Lifetimes};
use crate::analysis::live_set::Key;
use crate::render::format::{count, duration, percent, printable, size};
use crate::render::page::Page;
use journal::format::NoStack;

const LONGEST_BAR: u64 = 30;

pub fn show(page: &mut Page, study: &Study, lifetimes: &Lifetimes, top: usize) {
    let freed: u64 = lifetimes.freed.iter().map(|sum| sum.count).sum();
    page.heading(format!(
        "Lifetimes of {} allocations: {} were freed, {} live at the end",
        count(lifetimes.all.count),
        count(freed),
        count(lifetimes.all.count.saturating_sub(freed)),
    ));
    let most = lifetimes.freed.iter().map(|sum| sum.count).max().unwrap_or(0).max(1);
    let name = |class: usize| match LIMITS_NS.get(class) {
        Some(&limit) => format!("less than {}", short(limit)),
        None => format!("{} or more", short(LIMITS_NS[LIMITS_NS.len() - 1])),
    };
    let rows = lifetimes.freed.iter().enumerate().map(|(class, sum)| {
        let bar = (sum.count * LONGEST_BAR).div_ceil(most) as usize;
        let share = sum.count as f64 / lifetimes.all.count.max(1) as f64;
        vec![
            name(class),
            count(sum.count),
            percent(Some(share)),
            size(sum.bytes),
            "#".repeat(bar),
        ]
    });
    page.table(&["lived", "count", "share", "bytes", ""], &[1, 2, 3], rows.collect());

    let mut churn: Vec<(&(u64, u32), &Churn)> = lifetimes.churn.iter().collect();
    churn.sort_by_key(|(key, churn)| (std::cmp::Reverse(churn.sum.count), **key));
    page.heading("Most often allocated and freed");
    let row = |(key, churn): &(&(u64, u32), &Churn)| {
        vec![
            count(churn.sum.count),
            size(key.0),
            size(churn.sum.bytes),
            brief(churn.lived_ns / churn.sum.count.max(1)),
            stack(study, key.1),
        ]
    };
    let titles = ["count", "each", "bytes", "lived, mean", "stack"];
    page.table(&titles, &[0, 1, 2, 3], churn.iter().take(top).map(row).collect());

    let share = lifetimes.reused.count as f64 / lifetimes.all.count.max(1) as f64;
    let at_least = if lifetimes.incomplete { "at least " } else { "" };
    page.heading(format!(
        "Reuse: {at_least}{} of the allocations got an address that an earlier one had; {} different addresses",
        percent(Some(share)),
        count(lifetimes.addresses() as u64),
    ));
    let classes =
        lifetimes.freed.iter().enumerate().map(
            |(class, sum)| json!({ "less_than_ns": LIMITS_NS.get(class), "count": sum.count, "bytes": sum.bytes }),
        );
    let told = churn.iter().take(top.max(100)).map(|(key, churn)| {
        json!({
            "size": key.0,
            "stack": stack(study, key.1),
            "count": churn.sum.count,
            "bytes": churn.sum.bytes,
            "mean_lifetime_ns": churn.lived_ns / churn.sum.count.max(1),
        })
    });
    page.json(
        "temporary",
        json!({
            "allocations": lifetimes.all.count,
            "bytes": lifetimes.all.bytes,
            "freed": freed,
            "lifetimes": classes.collect::<Value>(),
            "most_often": told.collect::<Value>(),
            "reused": lifetimes.reused.count,
            "reused_bytes": lifetimes.reused.bytes,
            "addresses": lifetimes.addresses(),
            "incomplete": lifetimes.incomplete,
        }),
    );
}

fn stack(study: &Study, number: u32) -> String {
    match NoStack::stack(number) {
        Ok(number) => printable(&study.labels.key(Key::Stack(number)), 160),
        Err(_) => "-".to_owned(),
    }
}

/// A duration that may be short.
fn brief(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => duration(ns),
    }
}

fn short(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}
