//! How the program ends if it does not end with exit code 0: an exit code and a message for standard error.

use std::{fmt, io};

pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub fn new(code: u8, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// Something went wrong.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(1, message)
    }

    /// The program did not try: the arguments or a setting cannot be used.
    pub fn refused(message: impl fmt::Display) -> Self {
        Self::new(2, message)
    }

    /// The command did its work and printed its answer. The exit code tells the answer to scripts.
    pub const fn answer(code: u8) -> Self {
        Self {
            code,
            message: String::new(),
        }
    }

    /// Standard output cannot be written to.
    pub fn unwritten(error: io::Error) -> Self {
        Self::failed(format!("cannot write to standard output: {error}"))
    }

    pub const fn code(&self) -> u8 {
        self.code
    }

    /// The message for standard error; empty if there is nothing to say.
    pub fn message(&self) -> &str {
        &self.message
    }
}
