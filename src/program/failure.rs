//! The end of a run of the program with another exit code than 0, with a message for standard error.

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

    /// Exit code 1: the program tried and failed.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(1, message)
    }

    /// Exit code 2: the program did not try, because an argument or a setting cannot be used.
    pub fn refused(message: impl fmt::Display) -> Self {
        Self::new(2, message)
    }

    /// The command succeeded and printed its answer. For scripts the exit code repeats the answer.
    pub const fn answer(code: u8) -> Self {
        Self {
            code,
            message: String::new(),
        }
    }

    /// Fails with these problems, if there are any: what could be done is done by now.
    pub fn unless_none(problems: &[String]) -> Result<(), Self> {
        match problems {
            [] => Ok(()),
            problems => Err(Self::failed(problems.join("\n"))),
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
