//! The library's messages on stderr, in glog's form, so that the `grep` used on Paddle's output finds them:
//! `I0715 14:25:17.112233 12345 engine.rs:88] Using Auto Growth allocation strategy`.
//!
//! Each message is one `write(2)`. It takes no thread-local and no lock, because messages may come while a thread or the
//! process ends.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::identity::thread_id;
use base::say::{self, Level};
use base::signals::without_signals_of_writes;
use config::LogLevel;

/// Sets the level for the first engine of this process. A forked child keeps its parent's level. It does not wait for a
/// thread of its parent that is here.
pub fn start(level: LogLevel) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if BEGUN.swap(true, AcqRel) {
        return;
    }
    let last = match level {
        LogLevel::Off => return,
        LogLevel::Error => Level::Error,
        LogLevel::Warn => Level::Warn,
        LogLevel::Info => Level::Info,
        LogLevel::Debug | LogLevel::Trace => Level::Debug,
    };
    say::begin(last, write);
}

fn write(level: Level, file: &'static str, line: u32, message: fmt::Arguments<'_>) {
    let letter = match level {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info => 'I',
        Level::Debug => 'D',
    };
    let time = time_text(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let (thread, source) = (thread_id(), source_name(file));
    let text = format!("{letter}{time} {thread} {source}:{line}] {message}\n");
    // SAFETY: the buffer belongs to `text`. A failed write to stderr cannot be reported anywhere.
    without_signals_of_writes(|| unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) });
}

/// The last part of a source path. A `mod.rs` goes by the name of its folder: `engine/mod.rs` is `engine.rs`.
fn source_name(path: &str) -> String {
    let mut parts = path.rsplit('/');
    match (parts.next(), parts.next()) {
        (Some("mod.rs"), Some(folder)) => format!("{folder}.rs"),
        (last, _) => last.unwrap_or(path).to_owned(),
    }
}

/// Month, day and time of day, in UTC. Local time would need the C library's lock of the time zone. In a forked child,
/// a thread that does not exist there may hold that lock for ever.
fn time_text(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (month, day) = month_and_day(seconds / SECONDS_A_DAY);
    let (hour, minute, second) = (seconds % SECONDS_A_DAY / 3600, seconds % 3600 / 60, seconds % 60);
    let microseconds = since_1970.subsec_micros();
    format!("{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{microseconds:06}")
}

const SECONDS_A_DAY: u64 = 24 * 60 * 60;

/// The month (1 to 12) and the day of the month (1 to 31), so many days after 1970-01-01.
fn month_and_day(days: u64) -> (u32, u32) {
    let mut left = days;
    let mut year = 1970;
    loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let months = [31, 28 + u64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (month, length) in (1..).zip(months) {
            if left < length {
                return (month, left as u32 + 1);
            }
            left -= length;
        }
        year += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts are those of `date -u -d @SECONDS +'%m%d %H:%M:%S'`.
    #[test]
    fn the_time_is_that_of_the_calendar() {
        let expected = [
            (0, "0101 00:00:00.000000"),
            (951_782_399, "0228 23:59:59.000000"),
            (951_782_400, "0229 00:00:00.000000"),
            (1_709_251_199, "0229 23:59:59.000000"),
            (1_709_251_200, "0301 00:00:00.000000"),
            (1_735_689_599, "1231 23:59:59.000000"),
            (4_107_542_400, "0301 00:00:00.000000"),
        ];
        for (seconds, text) in expected {
            assert_eq!(time_text(Duration::from_secs(seconds)), text);
        }
        assert_eq!(time_text(Duration::from_micros(61_000_007)), "0101 00:01:01.000007");
    }
}
