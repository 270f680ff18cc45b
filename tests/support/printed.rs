//! What programs print: text and JSON.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::program;

/// What the program printed, and its exit code.
#[derive(Debug)]
pub struct Printed {
    pub code: Option<i32>,
    pub text: String,
    pub said: String,
    pub signal: Option<i32>,
}

impl From<Output> for Printed {
    fn from(output: Output) -> Printed {
        Printed {
            code: output.status.code(),
            text: String::from_utf8(output.stdout).expect("UTF-8"),
            said: String::from_utf8(output.stderr).expect("UTF-8"),
            signal: output.status.signal(),
        }
    }
}

impl Printed {
    #[track_caller]
    pub fn ok(self) -> Printed {
        assert_eq!(self.code, Some(0), "{}", self.said);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub fn vramshim(arguments: &[&str]) -> Printed {
    vramshim_with(arguments, [""; 0])
}

/// Runs the program with these arguments, and these paths behind them.
pub fn vramshim_with<P: AsRef<OsStr>>(arguments: &[&str], paths: impl IntoIterator<Item = P>) -> Printed {
    Command::new(program()).args(arguments).args(paths).printed()
}

pub trait Runs {
    fn printed(&mut self) -> Printed;
}

impl Runs for Command {
    fn printed(&mut self) -> Printed {
        let output = self.output();
        output.unwrap_or_else(|error| panic!("{self:?}: {error}")).into()
    }
}

/// For phrases that are the point.
#[track_caller]
pub fn assert_says(text: &(impl AsRef<str> + ?Sized), phrase: &(impl AsRef<str> + ?Sized)) {
    let (text, phrase) = (text.as_ref(), phrase.as_ref());
    assert!(text.contains(phrase), "{phrase}\n{text}");
}

/// Values of JSON that a test expects: another kind of value fails it.
pub trait Fields {
    fn number(&self) -> u64;
    fn list(&self) -> &Vec<Value>;
    fn text(&self) -> &str;
}

impl Fields for Value {
    #[track_caller]
    fn number(&self) -> u64 {
        self.as_u64().unwrap_or_else(|| panic!("no number: {self}"))
    }

    #[track_caller]
    fn list(&self) -> &Vec<Value> {
        self.as_array().unwrap_or_else(|| panic!("no array: {self}"))
    }

    #[track_caller]
    fn text(&self) -> &str {
        self.as_str().unwrap_or_else(|| panic!("no text: {self}"))
    }
}

/// Checks the fields of an object that `wanted` has.
#[track_caller]
pub fn assert_fields(object: &Value, wanted: Value, context: &str) {
    for (name, value) in wanted.as_object().expect("an object") {
        assert_eq!(&object[name], value, "{name}, {context}: {object:#}");
    }
}
