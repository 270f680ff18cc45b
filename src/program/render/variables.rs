//! The table of variables (`config::VARIABLES`) as text.

use config::{VARIABLES, Variable};

/// A paragraph for each variable.
pub fn text() -> String {
    let paragraph = |variable: &Variable| {
        let (accepted, part) = ((variable.accepted)(), variable.part.name());
        let (name, meaning, default) = (variable.name, variable.meaning, variable.default);
        format!("  {name} [default: {default}]\n      {meaning}\n      accepted: {accepted}\n      read by: {part}\n")
    };
    VARIABLES.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}
