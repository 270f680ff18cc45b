//! What the program says on stderr.

use std::fmt::Arguments;
use std::io::{Write, stderr};

/// Writes a line to stderr. If nobody can read it, because the disk is full or the reader of a pipe has ended, the program
/// goes on: `eprintln` would end it, and the job that `run` starts would not begin.
pub fn line(text: Arguments) {
    drop(writeln!(stderr(), "{text}"));
}

/// Says a message of the program.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::say::line(format_args!("vramshim: {}", format_args!($($text)*)))
    };
}

pub(crate) use say;
