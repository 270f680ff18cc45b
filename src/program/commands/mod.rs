//! The command line: the list of subcommands, and how a result or an error ends the program.
//!
//! To add a subcommand, write a module beside this file and add it to the list of modules, to `Command` and to `Command::run`.

mod completions;
mod ctl;
mod doctor;
mod export;
mod import;
mod inspect;
mod man;
mod reconcile;
mod replay;
mod report;
mod run;
mod serve;
mod stress;
mod top;
mod variables;
mod why;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use config::parse_duration;
use serde::Serialize;

use crate::analysis::nvml;
use crate::escaped;
use crate::failure::Failure;
use crate::launch::broken_pipe;
use crate::render::format::{columns, printable, wrapped};
use crate::render::text_or_json::Page;
use crate::say::{self, say};

/// The longest line of a message on standard error, in characters.
const LONGEST_LINE: usize = 16 << 10;

#[derive(Parser)]
#[command(name = "vramshim", version, about = ABOUT, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const ABOUT: &str = "Accounts for every byte of GPU memory that a CUDA job holds";

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 refused (wrong usage or a setting that cannot be used). `run` becomes the job, so its exit \
code is the job's; 127 means that the command was not found, 126 that it cannot be executed. `doctor` exits with 0 if it found nothing \
worse than a note, with 3 for warnings, with 4 for problems. `why` exits with 10 to 20 by its verdict, `inspect --fail-above` with 3 \
if the peak rose by more. `vramshim why --help` and `vramshim inspect --help` list them.";

#[derive(Subcommand)]
enum Command {
    /// Start a job under the library
    Run(run::Run),
    /// Show what jobs did with GPU memory
    Inspect(inspect::Inspect),
    /// Say why a job ran out of memory, and what to do next
    Why(why::Why),
    /// Check what could go wrong with a job on this machine
    Doctor(doctor::Doctor),
    #[command(name = doctor::PROBE, hide = true)]
    Probe,
    /// Write one HTML file that shows what jobs did with GPU memory
    Report(report::Report),
    /// Compute what other strategies would have reserved
    Replay(replay::Replay),
    /// Compare ledger, driver and NVML and name every byte of difference
    Reconcile(reconcile::Reconcile),
    /// Asks NVML for `reconcile` and `top`, in a child process
    #[command(name = nvml::SUBCOMMAND, hide = true)]
    AskNvml(reconcile::AskNvml),
    /// Write journals in the formats of other programs
    Export(export::Export),
    /// Write a journal from PyTorch's memory snapshot or RMM's log
    Import(import::Import),
    /// Show all devices and all processes under the library, continuously
    Top(top::Top),
    /// Serve the metrics of all jobs of a node to Prometheus
    Serve(serve::Serve),
    /// Ask a running job for its figures, or change its settings
    Ctl(ctl::Ctl),
    /// Make the driver work, and compare ledger, driver and NVML
    Stress(stress::Stress),
    #[command(name = stress::WORKER, hide = true)]
    StressWorker { order: String },
    /// List the environment variables that are read
    Variables(variables::Variables),
    /// Print the script with which a shell completes arguments
    Completions(completions::Completions),
    /// Write the man pages into a folder
    Man(man::Pages),
}

/// What a first run needs. Without arguments the program says it, and where the rest is.
const BEGIN: &str = "\
Begin:
  vramshim run -- python train.py    start a job; --sim 24GiB: without a GPU
  vramshim why                       why it ran out of memory, and what to do
  vramshim report                    the same as a page, report.html
";

/// The command line as a person types it: without the subcommands that this program calls itself. Completions and man
/// pages are made from it.
fn shown_command_line() -> clap::Command {
    let command = Arguments::command();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let shown: Vec<clap::Command> = shown.cloned().collect();
    let new = clap::Command::new("vramshim")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT);
    new.after_help(EXIT_CODES).subcommands(shown)
}

/// The command line that is parsed. `--help` is short: what is longer stands in the man pages.
fn command_line() -> clap::Command {
    let command = with_short_help(Arguments::command())
        .disable_help_subcommand(true)
        .term_width(width());
    let width = width();
    let command = command.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let notes = command
            .get_after_help()
            .map(|notes| wrapped(&short_notes(&name, &notes.to_string()), width));
        let (short, examines) = (command.after_help(notes.unwrap_or_default()), name == "doctor");
        short.mut_args(|argument| match argument.get_help().map(ToString::to_string) {
            // How the job would be started: `run --help` explains it.
            Some(_) if examines && doctor::OF_THE_JOB.contains(argument.get_id().as_str()) => argument.hide(true),
            Some(help) => argument.help(short_sentence(&help)),
            None => argument,
        })
    });
    command.after_help(wrapped(&format!("{BEGIN}\n{EXIT_CODES}"), width))
}

/// The width of help: the terminal's, as clap finds it, and at most 100 columns.
fn width() -> usize {
    const MOST: usize = 100;
    columns().unwrap_or(MOST).min(MOST)
}

fn with_short_help(command: clap::Command) -> clap::Command {
    let help = clap::Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help("Print help");
    command
        .disable_help_flag(true)
        .arg(help)
        .mut_subcommands(with_short_help)
}

/// The first sentence of the help of an option, and its default if that is short.
fn short_sentence(help: &str) -> String {
    const MOST_CHARACTERS: usize = 40;
    let (text, default) = help.split_once(" [default: ").unwrap_or((help, ""));
    let first = text.split(". ").next().unwrap_or_default();
    match default.len() {
        1..=MOST_CHARACTERS => format!("{first} [default: {default}"),
        _ => first.to_owned(),
    }
}

/// The paragraphs of notes that a user looks for: lists, examples and exit codes.
fn short_notes(name: &str, notes: &str) -> String {
    let is_short = |paragraph: &&str| paragraph.starts_with("Exit codes:") || paragraph.contains(":\n");
    let (short, longer): (Vec<&str>, Vec<&str>) = notes.split("\n\n").partition(is_short);
    let more = if longer.is_empty() {
        String::new()
    } else {
        format!("\n\nMore: man vramshim-{name}")
    };
    short.join("\n\n") + &more
}

/// Says what is wrong with the arguments, or prints the help that was asked for.
fn refuse(error: &clap::Error) -> Result<(), Failure> {
    if !error.use_stderr() {
        let printed = error.print().and_then(|()| io::stdout().flush());
        return printed.map_err(Failure::unwritten);
    }
    let harmful = |argument: std::ffi::OsString| argument.to_string_lossy().contains(char::is_control);
    if !std::env::args_os().any(harmful) {
        error.exit();
    }
    // The message repeats arguments, such as names of files, which may have escape sequences.
    for line in error.render().to_string().lines() {
        say::line(format_args!("{}", printable(line, LONGEST_LINE)));
    }
    Err(Failure::answer(2))
}

pub fn main() -> ExitCode {
    broken_pipe::ends_this_program();
    if std::env::args_os().len() == 1 {
        say::line(format_args!(
            "{ABOUT}\n\n{BEGIN}\n`vramshim --help` lists all commands."
        ));
        return ExitCode::from(2);
    }
    let arguments = command_line().try_get_matches();
    let done = match arguments.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(Arguments { command }) => command.run(),
        Err(error) => refuse(&error),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for line in failure.message().lines() {
                say!("{}", printable(line, LONGEST_LINE));
            }
            ExitCode::from(failure.code())
        }
    }
}

impl Command {
    fn run(self) -> Result<(), Failure> {
        match self {
            Command::Run(run) => run.start(),
            Command::Inspect(inspect) => inspect.show(),
            Command::Why(why) => why.explain(),
            Command::Doctor(doctor) => doctor.examine(),
            Command::Probe => doctor::answer_probe(),
            Command::Report(report) => report.make(),
            Command::Replay(replay) => replay.play(),
            Command::Reconcile(reconcile) => reconcile.show(),
            Command::AskNvml(question) => question.answer(),
            Command::Export(export) => export.write(),
            Command::Import(import) => import.write(),
            Command::Top(top) => top.show(),
            Command::Serve(serve) => serve.start(),
            Command::Ctl(ctl) => ctl.tell(),
            Command::Stress(stress) => stress.work(),
            Command::StressWorker { order } => stress::work(&order),
            Command::Variables(variables) => variables.show(),
            Command::Completions(completions) => completions.print(shown_command_line()),
            Command::Man(pages) => pages.write(&shown_command_line()),
        }
    }
}

/// Prints what a command found: `json` if that is wanted, or else the text.
fn print(json: Option<impl Serialize>, text: impl FnOnce(&mut Page)) -> Result<(), Failure> {
    let (mut out, mut page) = (BufWriter::new(io::stdout().lock()), Page::default());
    let written = match json {
        Some(json) => escaped::pretty(&mut out, &json),
        None => {
            text(&mut page);
            out.write_all(page.text.as_bytes())
        }
    };
    written.and_then(|()| out.flush()).map_err(Failure::unwritten)
}

/// A time that an option gives. The text of the error is for clap, which names option and value.
fn time(text: &str) -> Result<Duration, &'static str> {
    let given = parse_duration(text).filter(|given| *given >= Duration::from_millis(100));
    given.ok_or("give a time with a unit, at least 100ms, such as 15s, 5min or 2h")
}
