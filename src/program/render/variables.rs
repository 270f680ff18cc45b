//! The table of variables (`config::VARIABLES`) as text.

use std::fmt::Write;

use config::{VARIABLES, Variable};

/// The table for people: a paragraph for each variable.
pub fn text() -> String {
    let paragraph = |variable: &Variable| {
        let (accepted, part) = ((variable.accepted)(), variable.part.name());
        let (name, meaning, default) = (variable.name, variable.meaning, variable.default);
        format!("{name}\n    {meaning}\n    default: {default}\n    accepted: {accepted}\n    read by: {part}\n")
    };
    VARIABLES.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}

/// The list in the help of `vramshim run`: names, defaults and meanings.
pub fn help() -> String {
    let mut text = String::from("Environment variables (`vramshim variables` adds the accepted values):\n");
    for variable in VARIABLES {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {} [default: {}]\n      {}",
            variable.name, variable.default, variable.meaning
        );
    }
    text
}
