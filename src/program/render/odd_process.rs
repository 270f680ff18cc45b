//! The sentence about the process whose peak is farthest from that of the others.

use crate::analysis::odd_one::Odd;
use crate::render::format::{count, percent, size};

/// `name` is what a reader calls the process.
pub fn odd_one<T>(odd: &Odd<T>, name: &str) -> String {
    let more = odd.peak as f64 / odd.median.max(1) as f64 - 1.0;
    format!(
        "The odd one out is {name}: its peak of {} is {} {} than the median of {} processes, {}.",
        size(odd.peak),
        percent(Some(more.abs())),
        if more > 0.0 { "higher" } else { "lower" },
        count(odd.processes as u64),
        size(odd.median),
    )
}
