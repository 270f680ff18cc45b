//! `vramshim completions`: prints the script with which a shell completes the command line of `vramshim`.

use std::io::{self, Write};

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use config::Stacks;
use policy::Strategy;

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
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

impl Completions {
    pub fn print(self, program: Command) -> Result<(), Failure> {
        let shell: clap_complete::Shell = self.shell.parse().map_err(Failure::refused)?;
        let mut script = Vec::new();
        clap_complete::generate(
            shell,
            &mut program.mut_subcommands(with_values),
            "vramshim",
            &mut script,
        );
        io::stdout().write_all(&script).map_err(Failure::unwritten)
    }
}

/// A command with the values of options that clap does not check.
fn with_values(command: Command) -> Command {
    if !matches!(command.get_name(), "run" | "doctor") {
        return command;
    }
    let strategies = PossibleValuesParser::new(Strategy::ALL.iter().map(|strategy| strategy.name()));
    let stacks = PossibleValuesParser::new(Stacks::ALL.iter().map(|kinds| kinds.name()));
    command
        .mut_arg("strategy", |argument| argument.value_parser(strategies))
        .mut_arg("stacks", |argument| argument.value_parser(stacks))
}
