//! How long calls took: counts of durations in steps of a few percent, and the medians of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Steps of a duration that grows by the factor e, so a median is wrong by at most 4 percent.
const STEPS: f64 = 16.0;

/// What calls of one function cost, for requests of about one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    pub count: u64,
    pub p50_ns: u64,
}

/// Durations of calls by step, for each name and class of size.
#[derive(Default)]
pub struct Prices(BTreeMap<(&'static str, &'static str), BTreeMap<u32, u64>>);

impl Prices {
    pub fn note(&mut self, call: &'static str, bytes: u64, ns: u64) {
        let size = match bytes {
            0..=0x1_0000 => "to 64 KiB",
            0x1_0001..=0x100_0000 => "to 16 MiB",
            _ => "beyond 16 MiB",
        };
        let step = ((ns.max(1) as f64).ln() * STEPS).round() as u32;
        *self.0.entry((call, size)).or_default().entry(step).or_default() += 1;
    }

    pub fn list(&self) -> BTreeMap<String, Price> {
        let price = |((call, size), durations): (&(&str, &str), &BTreeMap<u32, u64>)| {
            let (count, mut passed) = (durations.values().sum(), 0);
            let median = durations.iter().find(|(_, of_step)| {
                passed += **of_step;
                2 * passed >= count
            });
            let p50_ns = median.map_or(0, |(step, _)| (f64::from(*step) / STEPS).exp().round() as u64);
            (format!("{call} {size}"), Price { count, p50_ns })
        };
        self.0.iter().map(price).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_sorted_durations() {
        let mut prices = Prices::default();
        (1..=100).for_each(|ns| prices.note("cuMemAlloc", 4096, ns * 1000));
        prices.note("cuMemFree", 1 << 30, 7);
        let list = prices.list();
        let (alloc, free) = (&list["cuMemAlloc to 64 KiB"], &list["cuMemFree beyond 16 MiB"]);
        assert!(alloc.p50_ns.abs_diff(50_000) < 3500 && alloc.count == 100, "{alloc:?}");
        assert_eq!((free.p50_ns, free.count), (7, 1));
    }
}
