//! The table of variables (`config::VARIABLES`) as text and as Markdown.

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

/// The table in docs/variables.md.
pub fn markdown() -> String {
    let mut text = String::from("| variable | read by | default | accepted | meaning |\n|---|---|---|---|---|\n");
    for variable in VARIABLES {
        let (accepted, part, default) = ((variable.accepted)(), variable.part.name(), code(variable.default));
        let (name, meaning) = (variable.name, variable.meaning);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{name}` | {part} | {default} | {accepted} | {meaning} |");
    }
    text
}

/// A default as Markdown: a value is set as code, a description as plain text.
fn code(default: &str) -> String {
    if default == "none" || default.contains(' ') {
        default.to_owned()
    } else {
        format!("`{default}`")
    }
}
