//! `vramshim completions`: prints the script with which a shell completes the command line of `vramshim`.

use std::io::{self, Write};

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use clap_complete::Shell;
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
    shell: Shell,
}

impl Completions {
    /// Prints the script for the command line `program`.
    pub fn print(self, program: Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        let mut program = completed(program);
        clap_complete::generate(self.shell, &mut program, "vramshim", &mut script);
        io::stdout().write_all(&script).map_err(Failure::unwritten)
    }
}

/// The command line as a person types it: without the subcommands that this program calls itself, and with the values of
/// options that clap does not check.
fn completed(program: Command) -> Command {
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
    let shown: Vec<Command> = shown.cloned().map(with_values).collect();
    Command::new("vramshim")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown)
}

fn with_values(command: Command) -> Command {
    let values = [
        (
            "strategy",
            Strategy::ALL.iter().map(|strategy| strategy.name()).collect::<Vec<_>>(),
        ),
        ("stacks", Stacks::ALL.iter().map(|kinds| kinds.name()).collect()),
    ];
    values.into_iter().fold(command, |command, (option, names)| {
        let is_one_of = command.get_name() == "run" || command.get_name() == "doctor";
        let has = is_one_of && command.get_arguments().any(|argument| argument.get_id() == option);
        match has {
            true => command.mut_arg(option, |argument| {
                argument.value_parser(PossibleValuesParser::new(names))
            }),
            false => command,
        }
    })
}
