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

/// A size that bounds something. `Some(None)` stands for the value 0, which bounds nothing.
pub(crate) fn size_or_none(text: &str) -> Option<Option<u64>> {
    size_with_unit(text).map(|bytes| (bytes > 0).then_some(bytes))
}

/// A limit as HAMi-core reads it (`get_limit_from_env` in its `multiprocess_memory_limit.c`): the whole number at the
/// beginning, times the unit if the last character is K, M or G. So `1.5g` is 1 GiB there, and `2gb` are 2 bytes.
pub(crate) fn limit_of_hami_core(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = text
        .chars()
        .last()
        .filter(|letter| !"tT".contains(*letter))
        .map_or(1, binary_unit);
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

/// A limit as vgpu-manager reads it (`iec_to_bytes` in its `util.c`): the number at the beginning, times the unit if the
/// next character is K, M, G or T. What follows is not read, so `2gb` and `2GiB` are 2 GiB.
pub(crate) fn limit_of_vgpu_manager(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let unit = text[end..].chars().next().map_or(1, binary_unit);
    let bytes = text[..end].parse::<f64>().ok()? * unit as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// The bytes of a unit that is one letter; 1 for any other.
fn binary_unit(letter: char) -> u64 {
    match letter.to_ascii_lowercase() {
        'k' => 1 << 10,
        'm' => 1 << 20,
        'g' => 1 << 30,
        't' => 1 << 40,
        _ => 1,
    }
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
