//! How long calls took: counts of durations in steps of a few percent, and the percentiles of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Each doubling of a duration has this many steps, so a percentile is wrong by at most 1/16.
const STEPS: u64 = 16;

/// What calls of one function cost, for requests of about one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    pub call: String,
    /// The sizes that count here: `to 64 KiB`, `to 16 MiB` or `beyond`.
    pub size: String,
    pub count: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

/// Durations of calls, by name and class of size.
#[derive(Default)]
pub struct Prices(BTreeMap<(&'static str, &'static str), BTreeMap<u64, u64>>);

fn class_of(bytes: u64) -> &'static str {
    match bytes {
        0..=0x1_0000 => "to 64 KiB",
        0x1_0001..=0x100_0000 => "to 16 MiB",
        _ => "beyond",
    }
}

/// The number of the step that a duration belongs to.
fn step_of(ns: u64) -> u64 {
    if ns < STEPS {
        return ns;
    }
    let doublings = u64::from(ns.ilog2() - STEPS.ilog2());
    doublings * STEPS + (ns >> doublings)
}

/// The middle of a step.
fn middle_of(step: u64) -> u64 {
    if step < 2 * STEPS {
        return step;
    }
    let doublings = step / STEPS - 1;
    let first = (STEPS + step % STEPS) << doublings;
    first + (1 << doublings) / 2
}

impl Prices {
    pub fn note(&mut self, call: &'static str, bytes: u64, ns: u64) {
        let durations = self.0.entry((call, class_of(bytes))).or_default();
        *durations.entry(step_of(ns)).or_default() += 1;
    }

    pub fn add(&mut self, other: Prices) {
        for (key, durations) in other.0 {
            let own = self.0.entry(key).or_default();
            for (step, count) in durations {
                *own.entry(step).or_default() += count;
            }
        }
    }

    pub fn list(&self) -> Vec<Price> {
        let price = |(&(call, size), durations): (&(&str, &str), &BTreeMap<u64, u64>)| {
            let count: u64 = durations.values().sum();
            let percentile = |percent: u64| {
                let mut left = (count * percent).div_ceil(100);
                let mut steps = durations.iter();
                let found = steps.find(|(_, of_step)| {
                    let reached = **of_step >= left;
                    left = left.saturating_sub(**of_step);
                    reached
                });
                found.map_or(0, |(step, _)| middle_of(*step))
            };
            Price {
                call: call.to_owned(),
                size: size.to_owned(),
                count,
                p50_ns: percentile(50),
                p99_ns: percentile(99),
            }
        };
        self.0.iter().map(price).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_holds_the_durations_around_its_middle() {
        let mut last = 0;
        for ns in (0..5000).chain((0..40).map(|power| 12_345 << power)) {
            let step = step_of(ns);
            assert!(step >= last, "{ns}");
            last = step;
            let middle = middle_of(step);
            assert!(middle.abs_diff(ns) <= ns / 16, "{ns}: {middle}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_durations() {
        let mut prices = Prices::default();
        (1..=100).for_each(|ns| prices.note("cuMemAlloc", 4096, ns * 1000));
        let mut other = Prices::default();
        other.note("cuMemFree", 1 << 30, 7);
        prices.add(other);
        let list = prices.list();
        assert_eq!(list.len(), 2);
        let (alloc, free) = (&list[0], &list[1]);
        assert_eq!(
            (alloc.call.as_str(), alloc.size.as_str(), alloc.count),
            ("cuMemAlloc", "to 64 KiB", 100)
        );
        assert!(
            alloc.p50_ns.abs_diff(50_000) < 3500 && alloc.p99_ns.abs_diff(99_000) < 6500,
            "{alloc:?}"
        );
        assert_eq!((free.size.as_str(), free.p50_ns, free.p99_ns), ("beyond", 7, 7));
    }
}
