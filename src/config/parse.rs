//! Parses the values of variables. Each function answers `None` for a value that cannot be used.

use std::time::Duration;

use base::units::{lacks_unit, parse_size};
use quota::Scope;

use crate::settings::DEEPEST_STACK;

const MIB: u64 = 1 << 20;

pub(crate) fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| *value > 0.0 && *value <= 1.0)
}

pub(crate) fn mebibytes(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(MIB)
}

/// A size. A small number without a unit is refused, because it was most likely meant with one.
pub(crate) fn size_with_unit(text: &str) -> Option<u64> {
    parse_size(text).filter(|_| !lacks_unit(text))
}

pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "True" | "TRUE" => Some(true),
        "0" | "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// A duration of at least a millisecond, with a unit (ms, s, min, h).
pub fn parse_duration(text: &str) -> Option<Duration> {
    duration_or_never(text.trim()).flatten()
}

/// A duration of at least a millisecond, with a unit. `Some(None)` stands for the value 0, which means never.
pub(crate) fn duration_or_never(text: &str) -> Option<Option<Duration>> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..unit_at].trim().parse().ok().filter(|number| *number >= 0.0)?;
    let milliseconds = match text[unit_at..].trim() {
        "ms" => number,
        "s" => number * 1e3,
        "min" => number * 60e3,
        "h" => number * 3600e3,
        "" if number == 0.0 => 0.0,
        _ => return None,
    };
    match milliseconds {
        0.0 => Some(None),
        // Less than a year, so that no sum of times overflows.
        1.0..31_536_000_000.0 => Some(Some(Duration::from_micros((milliseconds * 1e3) as u64))),
        _ => None,
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

pub(crate) fn scope(text: &str) -> Option<Scope> {
    [Scope::Process, Scope::Group]
        .into_iter()
        .find(|scope| scope.name() == text)
}
