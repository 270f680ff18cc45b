//! `vramshim variables`: the environment variables that the library and the program read.

use std::io::{self, Write};

use clap::Args;

use crate::failure::Failure;
use crate::render::variables;

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
        io::stdout()
            .write_all(variables::text().as_bytes())
            .map_err(Failure::unwritten)
    }
}
