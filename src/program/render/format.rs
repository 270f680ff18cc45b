//! Formats sizes, counts, times and text from files for people.

use std::io::{self, IsTerminal};

use chrono::{DateTime, SecondsFormat};
use config::table;
use journal::format::{Amount, Reason};
use journal::reader::State;
use ratatui::crossterm::terminal;
use serde_json::{Value, json};

use crate::analysis::job::{Job, NOT_KNOWN};

pub use base::text::{count, events_were, many, printable, shown};
pub use base::units::size;

/// A size that is not rounded down.
pub fn enough(bytes: u64) -> String {
    format!("{} MiB", count(bytes.div_ceil(1 << 20)))
}

/// Whether text on standard output may have colours and bold type: on a terminal, unless `NO_COLOR` is set or the
/// terminal is known to be dumb.
pub fn styled() -> bool {
    let refused = std::env::var_os(table::NO_COLOR.name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !refused && !is_dumb()
}

/// Whether the terminal shows ASCII characters alone (`TERM=dumb`).
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// The width of standard output: of the terminal, or what `COLUMNS` says. `None` if neither says it.
pub fn columns() -> Option<usize> {
    let terminal = terminal::size().ok().filter(|_| io::stdout().is_terminal());
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    let columns = terminal.map(|(columns, _)| usize::from(columns)).or_else(told);
    columns.filter(|&columns| columns > 0)
}

/// Breaks lines at `width`: what goes on stands below the last column.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let column = line.trim_start().rfind("  ").map_or(indent, |at| indent + at + 2);
        let mut now = line[..column].to_owned();
        for (place, word) in line[column..].split(' ').enumerate() {
            if place > 0 && now.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::replace(&mut now, " ".repeat(column)));
            } else if place > 0 {
                now.push(' ');
            }
            now.push_str(word);
        }
        lines.push(now);
    }
    lines.join("\n")
}

/// `text`, printed bold by escape sequences where that is allowed.
pub fn strong(text: &str) -> String {
    in_style(text, "1")
}

/// The same in a style of its own, such as `1;31` for bold and red.
pub fn in_style(text: &str, style: &str) -> String {
    match styled() {
        true => format!("\x1b[{style}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// Bytes as well as they are known. "none" is said only of an exact figure; other functions must not say it of an amount.
pub fn amount(amount: Amount) -> String {
    match amount {
        Amount::Exact(0) => "none".to_owned(),
        Amount::Exact(bytes) => size(bytes),
        Amount::AtLeast(bytes @ 1..) => format!("at least {}", size(bytes)),
        Amount::AtMost(bytes @ 1..) => format!("at most {}", size(bytes)),
        Amount::NotKnown(Reason::EventsLost) => "an unknown amount (events were lost)".to_owned(),
        Amount::AtLeast(0) | Amount::AtMost(0) | Amount::NotKnown(_) => "an unknown amount".to_owned(),
    }
}

pub fn size_or_not_known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "not known".to_owned(), size)
}

/// An amount as JSON: a number if it is exact, an object for a bound, null if it is not known.
pub fn amount_json(amount: Amount) -> Value {
    match amount {
        Amount::Exact(bytes) => json!(bytes),
        Amount::AtLeast(bytes) => json!({ "at_least": bytes }),
        Amount::AtMost(bytes) => json!({ "at_most": bytes }),
        Amount::NotKnown(_) => Value::Null,
    }
}

/// A text that says how a process ended, or that the process runs.
pub fn ended(state: State) -> String {
    match state {
        State::Running => "running".into(),
        State::Dumped => "ran on".into(),
        State::Exited(status) => format!("exit {status}"),
        State::Killed => "no exit".into(),
    }
}

/// How the process of a job ended, and when. A killed process notes no end, so its last sign of life is told.
pub fn ended_after(job: &Job) -> String {
    let after = duration(job.duration_ns);
    match job.state {
        _ if !job.knows_times() => "not known".to_owned(),
        _ if job.is_imported() => format!("not known, after {after}"),
        _ if !knows_end(job) => format!("{NOT_KNOWN}, last sign of life after {after}"),
        State::Running => format!("running for {after}"),
        State::Dumped => format!("copied while it ran, after {after}"),
        State::Killed => format!(
            "without exit, signal not known, at a time that is not known; last sign of life after {after}; a copy that was \
             made while the job ran looks the same"
        ),
        State::Exited(status) => format!("exit {status} after {after}"),
    }
}

/// How the process of a job ended, without more words.
pub fn job_ended(job: &Job) -> String {
    match (job.is_imported(), knows_end(job)) {
        (true, _) => "not known".to_owned(),
        (false, false) => NOT_KNOWN.to_owned(),
        (false, true) if job.state == State::Killed => "without exit, signal not known".to_owned(),
        (false, true) => ended(job.state),
    }
}

/// How the process of a job ended as a title, and whether that is bad.
pub fn end_title(job: &Job) -> (&'static str, bool) {
    match job.state {
        _ if job.is_imported() => ("Imported", false),
        _ if !knows_end(job) => ("End not known", true),
        State::Running => ("Running", false),
        State::Dumped => ("Running when copied", false),
        State::Exited(0) => ("Ended well", false),
        State::Exited(_) => ("Ended early", true),
        State::Killed => ("Ended without exit", true),
    }
}

/// Whether the process runs, or what its journal says of its end is not damaged.
pub fn knows_end(job: &Job) -> bool {
    matches!(job.state, State::Running | State::Dumped) || job.header.knows_end()
}

pub fn host(job: &Job, width: usize) -> String {
    if job.header.knows_process() {
        printable(&job.header.host, width)
    } else {
        format!("a machine {NOT_KNOWN}")
    }
}

pub fn started(job: &Job) -> String {
    match job.header.knows_process() {
        true if job.knows_times() => time(job.header.wall_start_ns),
        true => "at a time that is not known".to_owned(),
        false => NOT_KNOWN.to_owned(),
    }
}

pub fn events_lost(job: &Job) -> String {
    if job.header.knows_lost() {
        count(job.lost)
    } else {
        NOT_KNOWN.to_owned()
    }
}

/// A size that may be negative.
pub fn difference(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

/// A text such as "twice" or "3 times".
pub fn times(number: u64) -> String {
    match number {
        1 => "once".into(),
        2 => "twice".into(),
        _ => format!("{} times", count(number)),
    }
}

pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.1} %", share * 100.0))
}

/// What stands before a figure that is a lower bound.
pub fn at_least(is_bound: bool) -> &'static str {
    match (is_bound, is_dumb()) {
        (false, _) => "",
        (true, false) => "\u{2265} ",
        (true, true) => ">= ",
    }
}

pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0 => format!("{:.1} ms", ns as f64 / 1e6),
        1..60 => format!("{:.1} s", ns as f64 / 1e9),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// A time, given in nanoseconds after 1970, as RFC 3339 in UTC with whole seconds.
pub fn time(ns: u64) -> String {
    let time = DateTime::from_timestamp((ns / 1_000_000_000) as i64, 0);
    time.map_or_else(String::new, |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size((1 << 30) - 1), "1.00 GiB");
        assert_eq!(size(80 << 30), "80.0 GiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(
            (count(0), count(999), count(1234567)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_782_400_000_000_000), "2000-02-29T00:00:00Z");
        assert_eq!(time(1_784_125_517_000_000_000), "2026-07-15T14:25:17Z");
        assert_eq!(time(u64::MAX).len(), 20);
    }

    #[test]
    fn durations() {
        assert_eq!(duration(1_500_000), "1.5 ms");
        assert_eq!(duration(90_000_000_000), "1 min 30 s");
        assert_eq!(duration(90_000_000_000_000), "1 d 1 h");
    }
}
