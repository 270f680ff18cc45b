//! The library's messages on stderr, in glog's form, so that the `grep` used on Paddle's output finds them:
//! `I0715 14:25:17.112233 12345 engine.rs:88] Using Auto Growth allocation strategy`.
//!
//! Messages go through `tracing`, and `Glog` writes each by one `write(2)`. It keeps no thread-local and takes no lock of
//! its own, because messages may come while a thread or the process ends.

use std::fmt::{self, Write as _};
use std::mem::MaybeUninit;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};

use base::identity::thread_id;
use config::LogLevel;

/// Sets the level for the first engine of this process. A forked child keeps its parent's level.
pub fn start(level: LogLevel) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = match level {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        let subscriber = tracing_subscriber::registry().with(filter).with(Glog);
        // This fails only if a default was set before, and no other code of this library sets one.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

struct Glog;

impl<S: Subscriber> Layer<S> for Glog {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let letter = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            Level::INFO => 'I',
            _ => 'D',
        };
        let file = source_name(metadata.file().unwrap_or("vramshim"));
        let mut line = String::with_capacity(160);
        let _ = write!(
            line,
            "{letter}{} {} {file}:{}] ",
            Now::read(),
            thread_id(),
            metadata.line().unwrap_or(0)
        );
        event.record(&mut Message(&mut line));
        line.push('\n');
        // SAFETY: the buffer belongs to `line`. A failed write to stderr cannot be reported anywhere.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
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

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// Month, day and time of day, in local time.
struct Now {
    parts: libc::tm,
    microseconds: i64,
}

impl Now {
    fn read() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut parts = MaybeUninit::<libc::tm>::zeroed();
        // SAFETY: both pointers are to variables of this frame, and a `tm` of zeros is a valid one.
        let parts = unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &mut time);
            libc::localtime_r(&time.tv_sec, parts.as_mut_ptr());
            parts.assume_init()
        };
        Now {
            parts,
            microseconds: time.tv_nsec / 1000,
        }
    }
}

impl fmt::Display for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tm = &self.parts;
        write!(f, "{:02}{:02} ", tm.tm_mon + 1, tm.tm_mday)?;
        write!(
            f,
            "{:02}:{:02}:{:02}.{:06}",
            tm.tm_hour, tm.tm_min, tm.tm_sec, self.microseconds
        )
    }
}
