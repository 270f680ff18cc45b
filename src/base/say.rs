//! Messages of the library to its user. The library chooses a function that writes them (`preload/log.rs`). In the program
//! none is chosen, and they are lost.

use std::fmt;
use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// Writes a message of a level, from a line of a source file.
pub type Write = fn(Level, &'static str, u32, fmt::Arguments<'_>);

/// The last level whose messages are written, and the function that writes them.
static WRITER: OnceLock<(Level, Write)> = OnceLock::new();

/// From now on `write` gets the messages of the levels up to `last`. Only the first call has an effect.
pub fn begin(last: Level, write: Write) {
    let _ = WRITER.set((last, write));
}

/// Says a message from a line of the source. The macros of this module call it.
pub fn say(level: Level, file: &'static str, line: u32, message: fmt::Arguments<'_>) {
    if let Some((last, write)) = WRITER.get()
        && level <= *last
    {
        write(level, file, line, message);
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
