//! What the program says on stderr.

use std::fmt::Arguments;
use std::io::{Write, stderr};

use base::signals::without_signals_of_writes;

/// Writes a line to stderr. If it cannot be written, because the disk is full or the reader of a pipe has ended, the program
/// goes on. `eprintln` would end the program, and the job that `run` starts would not begin.
pub fn line(text: Arguments) {
    drop(without_signals_of_writes(|| writeln!(stderr(), "{text}")));
}

/// Says a message of the program.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::say::line(format_args!("vramshim: {}", format_args!($($text)*)))
    };
}

pub(crate) use say;
