//! `vramshim completions`: prints the script with which a shell completes the command line of `vramshim`.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;

const EXAMPLES: &str = "\
Where the shells look for it:
  vramshim completions bash > ~/.local/share/bash-completion/completions/vramshim
  vramshim completions zsh > ~/.zfunc/_vramshim      # with fpath+=~/.zfunc before compinit in ~/.zshrc
  vramshim completions fish > ~/.config/fish/completions/vramshim.fish

The script knows commands, options and their values. Make it anew after an update of vramshim.

Exit codes: 0 done, 1 if it cannot be written, 2 wrong usage.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script for the command line `program`.
    pub fn print(self, mut program: Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "vramshim", &mut script);
        io::stdout().write_all(&script).map_err(Failure::unwritten)
    }
}
