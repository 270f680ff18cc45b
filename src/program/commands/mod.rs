//! The command line: the list of subcommands, and how a result or an error ends the program.
//!
//! To add a subcommand, write a module beside this file and add it to the list of modules, to `Command` and to `main`.

mod completions;
mod ctl;
mod doctor;
mod export;
mod frames;
mod import;
mod inspect;
mod reconcile;
mod replay;
mod report;
mod run;
mod serve;
mod stress;
mod top;
mod variables;
mod why;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::analysis::nvml;
use crate::failure::Failure;
use crate::launch::broken_pipe;
use crate::render::format::printable;
use crate::say::{self, say};

/// The longest line of a message on standard error, in characters.
const LONGEST_LINE: usize = 16 << 10;

#[derive(Parser)]
#[command(name = "vramshim", version, about = ABOUT, long_about = LONG_ABOUT, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const ABOUT: &str = "Accounts for every byte of GPU memory that a CUDA job holds";

const LONG_ABOUT: &str = "Keeps a ledger of a CUDA job's GPU memory. The library stands between the job and the driver and records \
every allocation with the API that made it, and for each device how much is requested, allocated and reserved.";

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
    /// Check what could go wrong with a job on this machine, before it starts
    Doctor(doctor::Doctor),
    #[command(name = doctor::PROBE, hide = true)]
    Probe(doctor::Probe),
    /// Write one HTML file that shows what jobs did with GPU memory; it needs no network
    Report(report::Report),
    /// Compute what other strategies would have reserved for the same requests
    Replay(replay::Replay),
    /// Compare ledger, driver and NVML and name every byte of difference
    Reconcile(reconcile::Reconcile),
    /// Asks NVML for `reconcile` and `top`, in a child process
    #[command(name = nvml::SUBCOMMAND, hide = true)]
    AskNvml(reconcile::AskNvml),
    /// Write journals in the formats of other programs: PyTorch's snapshot, Perfetto, Parquet, CSV, collapsed stacks
    Export(export::Export),
    /// Write a journal from a memory snapshot of PyTorch or from RMM's log, for all views
    Import(import::Import),
    /// Show all devices and all processes under the library, continuously
    Top(top::Top),
    /// Serve the metrics of all jobs of a node to Prometheus, or write them to a file
    Serve(serve::Serve),
    /// Ask a running job for its figures, or tell it to give memory back, or to change a setting
    Ctl(ctl::Ctl),
    /// Make the driver work under each strategy, and compare ledger, driver and NVML all the while
    Stress(stress::Stress),
    #[command(name = stress::WORKER, hide = true)]
    StressWorker(stress::Worker),
    /// Name the frames in the reports of the host guard: functions, and lines of source
    Frames(frames::Frames),
    /// List the environment variables that the library and the program read
    Variables(variables::Variables),
    /// Print the script with which a shell completes the arguments of vramshim
    Completions(completions::Completions),
}

/// Says what is wrong with the arguments, or prints the help that was asked for, and ends the program.
fn refuse(error: &clap::Error) -> ! {
    let harmful = |argument: std::ffi::OsString| argument.to_string_lossy().contains(char::is_control);
    if error.use_stderr() && std::env::args_os().any(harmful) {
        // The message repeats arguments, such as names of files, which may have escape sequences.
        for line in error.render().to_string().lines() {
            say::line(format_args!("{}", printable(line, LONGEST_LINE)));
        }
        std::process::exit(error.exit_code());
    }
    if !error.use_stderr()
        && let Err(problem) = error.print().and_then(|()| io::stdout().flush())
    {
        let failure = Failure::unwritten(problem);
        say!("{}", failure.message());
        std::process::exit(failure.code().into());
    }
    if error.use_stderr() {
        error.exit();
    }
    std::process::exit(error.exit_code());
}

pub fn main() -> ExitCode {
    broken_pipe::ends_this_program();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => refuse(&error),
    };
    let done = match arguments.command {
        Command::Run(run) => run.start(),
        Command::Inspect(inspect) => inspect.show(),
        Command::Why(why) => why.explain(),
        Command::Doctor(doctor) => doctor.examine(),
        Command::Probe(probe) => probe.answer(),
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
        Command::StressWorker(worker) => worker.start(),
        Command::Frames(frames) => frames.name(),
        Command::Variables(variables) => variables.show(),
        Command::Completions(completions) => completions.print(Arguments::command()),
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
