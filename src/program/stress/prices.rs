//! How long calls took: counts of durations in steps of a few percent, and the percentiles of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Steps of a duration that grows by the factor e, so a percentile is wrong by at most 4 percent.
const STEPS: f64 = 16.0;

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

/// Durations of calls by step, for each name and class of size.
#[derive(Default)]
pub struct Prices(BTreeMap<(&'static str, &'static str), BTreeMap<u32, u64>>);

impl Prices {
    pub fn note(&mut self, call: &'static str, bytes: u64, ns: u64) {
        let size = match bytes {
            0..=0x1_0000 => "to 64 KiB",
            0x1_0001..=0x100_0000 => "to 16 MiB",
            _ => "beyond",
        };
        let step = ((ns.max(1) as f64).ln() * STEPS).round() as u32;
        *self.0.entry((call, size)).or_default().entry(step).or_default() += 1;
    }

    pub fn list(&self) -> Vec<Price> {
        let price = |(&(call, size), durations): (&(&str, &str), &BTreeMap<u32, u64>)| {
            let count: u64 = durations.values().sum();
            let percentile = |percent: u64| {
                let mut left = (count * percent).div_ceil(100);
                let found = durations.iter().find(|(_, of_step)| {
                    left = left.saturating_sub(**of_step);
                    left == 0
                });
                found.map_or(0, |(step, _)| (f64::from(*step) / STEPS).exp().round() as u64)
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
    fn percentiles_are_those_of_the_sorted_durations() {
        let mut prices = Prices::default();
        (1..=100).for_each(|ns| prices.note("cuMemAlloc", 4096, ns * 1000));
        prices.note("cuMemFree", 1 << 30, 7);
        let list = prices.list();
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
