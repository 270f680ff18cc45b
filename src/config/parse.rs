//! Parses the values of variables. Each function answers `None` for a value that cannot be used.

use std::time::Duration;

use base::units::{Dialect, LEAST_HOST_GUARD_BYTES, likely_size, parse_size, parse_time};
use quota::limits::Amount;

use crate::settings::{DEEPEST_STACK, Strict, Surge};

const MIB: u64 = 1 << 20;
/// A duration is at least a millisecond, and less than a year, so that no sum of times overflows.
const LEAST_TIME: Duration = Duration::from_millis(1);
const MOST_TIME: Duration = Duration::from_secs(365 * 86400);

pub(crate) fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| *value > 0.0 && *value <= 1.0)
}

pub(crate) fn mebibytes(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(MIB)
}

/// A size. A small number without a unit is refused, because it was most likely meant with one.
pub(crate) fn size_with_unit(text: &str) -> Option<u64> {
    parse_size(text).filter(|_| likely_size(text).is_none())
}

/// A size that bounds something. `Some(None)` stands for the value 0, which bounds nothing.
pub(crate) fn size_or_none(text: &str) -> Option<Option<u64>> {
    size_with_unit(text).map(|bytes| (bytes > 0).then_some(bytes))
}

pub(crate) fn host_guard(text: &str) -> Option<Option<u64>> {
    size_or_none(text).filter(|bound| bound.is_none_or(|bytes| bytes >= LEAST_HOST_GUARD_BYTES))
}

pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "True" | "TRUE" => Some(true),
        "0" | "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

pub(crate) fn strict(text: &str) -> Option<Strict> {
    if text == "limits" {
        return Some(Strict::Limits);
    }
    boolean(text).map(|all| if all { Strict::All } else { Strict::No })
}

/// A duration of at least a millisecond, with a unit (`parse_time`).
pub fn parse_duration(text: &str) -> Option<Duration> {
    duration_or_never(text.trim()).flatten()
}

/// A duration of at least a millisecond, with a unit. `Some(None)` stands for the value 0, which means never.
pub(crate) fn duration_or_never(text: &str) -> Option<Option<Duration>> {
    match Duration::from_nanos(parse_time(text)?) {
        Duration::ZERO => Some(None),
        time => (LEAST_TIME..MOST_TIME).contains(&time).then_some(Some(time)),
    }
}

/// Whether stored answers are used.
pub(crate) fn stored(text: &str) -> Option<bool> {
    match text {
        "stored" => Some(true),
        "ignore" => Some(false),
        _ => None,
    }
}

pub(crate) fn stack_depth(text: &str) -> Option<usize> {
    text.parse().ok().filter(|depth| (1..=DEEPEST_STACK).contains(depth))
}

/// Bytes, or a share of a whole.
fn amount(text: &str) -> Option<Amount> {
    let amount = Amount::parse(text, Dialect::Own).ok()?;
    (amount != Amount::Bytes(0)).then_some(amount)
}

/// `AMOUNT/TIME` or `AMOUNT..AMOUNT/TIME`. A time without a number is one of that unit: `20%/s`.
pub(crate) fn surge(text: &str) -> Option<Option<Surge>> {
    if text.trim() == "0" {
        return Some(None);
    }
    let (growth, time) = text.split_once('/')?;
    let time = time.trim();
    let has_number = time.starts_with(|letter: char| letter.is_ascii_digit());
    let within = duration_or_never(&format!("{}{time}", if has_number { "" } else { "1" }))??;
    let (from, to) = match growth.split_once("..") {
        Some((from, to)) => (Some(amount(from)?), amount(to)?),
        None => (None, amount(growth)?),
    };
    let is_range = match (from, to) {
        (Some(Amount::Bytes(from)), Amount::Bytes(to)) => from < to,
        (Some(Amount::Share(from)), Amount::Share(to)) => from < to,
        (Some(_), _) => false,
        (None, _) => true,
    };
    is_range.then_some(Some(Surge { from, to, within }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let second = Duration::from_secs(1);
        let speed = |to, within| Some(Some(Surge { from: None, to, within }));
        assert_eq!(surge("20%/s"), speed(Amount::Share(0.2), second));
        assert_eq!(surge(" 8GiB / 500ms "), speed(Amount::Bytes(8 << 30), second / 2));
        let range = Surge {
            from: Some(Amount::Share(0.1)),
            to: Amount::Share(0.9),
            within: 90 * second,
        };
        assert_eq!(surge("10%..90%/90s"), Some(Some(range)));
        assert_eq!(surge("0"), Some(None));
        let bad = "20% 20/s 0%/s 101%/s 90%..10%/s 1GiB..50%/s 20%/0s 20%/ x/s /s";
        for bad in bad.split(' ').chain([""]) {
            assert_eq!(surge(bad), None, "{bad}");
        }
    }
}
