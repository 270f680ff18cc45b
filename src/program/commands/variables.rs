//! `vramshim variables`: the environment variables that the library and the program read.

use clap::Args;
use config::{VARIABLES, Variable};

use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  vramshim variables
  vramshim variables | grep -A4 LIMIT

A variable that is set to nothing counts as not set. If a value cannot be used, the library uses the default and says so \
(VRAMSHIM_STRICT=1: it refuses requests for memory), and `vramshim run` refuses to start the job.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Variables;

impl Variables {
    pub fn show(self) -> Result<(), Failure> {
        super::print(None::<()>, |page| page.text = text())
    }
}

pub fn text() -> String {
    let paragraph = |variable: &Variable| {
        let (accepted, part) = ((variable.accepted)(), variable.part.name());
        let (name, meaning, default) = (variable.name, variable.meaning, variable.default);
        format!("  {name} [default: {default}]\n      {meaning}\n      accepted: {accepted}\n      read by: {part}\n")
    };
    VARIABLES.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}
