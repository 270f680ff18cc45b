//! Messages of the library to its user.
//!
//! All messages of a level go through one call of `tracing`. A call of `tracing`'s own macros leaves ten pointers in the
//! library, and the loader writes each of them at the start of every process that inherits the preload.

use std::fmt;

#[derive(Clone, Copy)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// Says a message from a line of the source. The macros of this module call it.
pub fn say(level: Level, file: &'static str, line: u32, message: fmt::Arguments<'_>) {
    match level {
        Level::Error => tracing::error!(file, line, "{message}"),
        Level::Warn => tracing::warn!(file, line, "{message}"),
        Level::Info => tracing::info!(file, line, "{message}"),
        Level::Debug => tracing::debug!(file, line, "{message}"),
    }
}

/// Says a message of a level, as `format!` writes it.
#[macro_export]
macro_rules! say_at {
    ($level:ident, $($message:tt)+) => {
        $crate::say::say($crate::say::Level::$level, file!(), line!(), format_args!($($message)+))
    };
}
#[macro_export]
macro_rules! say_error {
    ($($message:tt)+) => { $crate::say_at!(Error, $($message)+) };
}
#[macro_export]
macro_rules! say_warn {
    ($($message:tt)+) => { $crate::say_at!(Warn, $($message)+) };
}
#[macro_export]
macro_rules! say_info {
    ($($message:tt)+) => { $crate::say_at!(Info, $($message)+) };
}
#[macro_export]
macro_rules! say_debug {
    ($($message:tt)+) => { $crate::say_at!(Debug, $($message)+) };
}
pub use crate::{say_debug as debug, say_error as error, say_info as info, say_warn as warn};
