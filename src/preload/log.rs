//! The library's messages on stderr, in glog's form, so that the `grep` used on Paddle's output finds them:
//! `I0715 14:25:17.112233 12345 engine.rs:88] Using Auto Growth allocation strategy`.
//!
//! Messages go through `tracing`, and `Glog` writes each by one `write(2)`. It keeps no thread-local and takes no lock of
//! its own, because messages may come while a thread or the process ends.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};

use base::identity::thread_id;
use base::signals::without_signals_of_writes;
use config::LogLevel;

/// Sets the level for the first engine of this process. A forked child keeps its parent's level. It does not wait for a
/// thread of its parent that is here.
pub fn start(level: LogLevel) {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if BEGUN.swap(true, AcqRel) {
        return;
    }
    let filter = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::registry().with(filter).with(Glog);
    // This fails if a default was set before. No other code of this library sets one.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct Glog;

impl<S: Subscriber> Layer<S> for Glog {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let letter = match *event.metadata().level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            Level::INFO => 'I',
            _ => 'D',
        };
        let mut said = Said::default();
        event.record(&mut said);
        let mut line = format!(
            "{letter}{} {} {}:{}] {}",
            time_text(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            thread_id(),
            source_name(&said.file),
            said.line,
            said.message
        );
        line.push('\n');
        // SAFETY: the buffer belongs to `line`. A failed write to stderr cannot be reported anywhere.
        without_signals_of_writes(|| unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) });
    }
}

/// The last part of a source path. A `mod.rs` goes by the name of its folder: `engine/mod.rs` is `engine.rs`.
fn source_name(path: &str) -> String {
    let mut parts = path.rsplit('/');
    match (parts.next(), parts.next()) {
        (Some("mod.rs"), Some(folder)) => format!("{folder}.rs"),
        (last, _) => last.unwrap_or(path).to_owned(),
    }
}

/// The fields that `base::say` gives a message.
#[derive(Default)]
struct Said {
    file: String,
    line: u64,
    message: String,
}

impl Visit for Said {
    fn record_u64(&mut self, _line: &Field, value: u64) {
        self.line = value;
    }

    fn record_str(&mut self, _file: &Field, value: &str) {
        value.clone_into(&mut self.file);
    }

    fn record_debug(&mut self, _message: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.message, "{value:?}");
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
