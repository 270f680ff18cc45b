//! `vramshim man`: writes the man pages. They say what `--help` says and more: the long texts of each command.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base::text::shown;
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::failure::Failure;

#[derive(Args)]
#[command(after_help = "Exit codes: 0 done, 1 if a page cannot be written, 2 wrong usage.")]
pub struct Pages {
    /// The folder for the pages, such as ~/.local/share/man/man1; it must exist
    folder: PathBuf,
}

impl Pages {
    /// Writes a page for the command line `program` and one for each subcommand.
    pub fn write(&self, program: &Command) -> Result<(), Failure> {
        let written = |name: &str, command: Command| {
            let path = self.folder.join(format!("{name}.1"));
            page(&path, command).map_err(|error| Failure::failed(format!("{}: {error}", shown(&path))))
        };
        for command in program.get_subcommands() {
            let name = format!("vramshim-{}", command.get_name());
            let command = command
                .clone()
                .display_name(name.clone())
                .version(env!("CARGO_PKG_VERSION"));
            written(&name, command.bin_name(name.replacen('-', " ", 1)))?;
        }
        written("vramshim", program.clone())
    }
}

fn page(path: &Path, command: Command) -> io::Result<()> {
    let mut more = Roff::default();
    let text = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string);
    more.control("SH", ["NOTES"]);
    for line in text.iter().flat_map(|text| text.lines()) {
        match line {
            "" => more.control("PP", []),
            // Examples and tables keep their lines.
            _ if line.starts_with("  ") => more.control("nf", []).text([roman(line)]).control("fi", []),
            _ => more.text([roman(line)]),
        };
    }
    let mut out = io::BufWriter::new(std::fs::File::create(path)?);
    let man = Man::new(command);
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    man.render_subcommands_section(&mut out)?;
    more.to_writer(&mut out)?;
    out.flush()
}
