//! The command line: what can be asked for, and how an answer or an error leaves the program.

mod doctor;
mod inspect;
mod reconcile;
mod replay;
mod run;
mod top;
mod variables;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::analysis::nvml;

#[derive(Parser)]
#[command(name = "vramshim", version, about = ABOUT, long_about = LONG_ABOUT, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const ABOUT: &str = "Accounts for every byte of GPU memory that a CUDA job holds";

const LONG_ABOUT: &str = "Keeps one account of a CUDA job's GPU memory by standing between the job and the driver: \
every allocation under the API it was made through, and for each device how much is requested, allocated and reserved.";

// A paragraph is one line: it is broken to the width of the terminal.
const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 refused (wrong usage or a setting that cannot be used). `run` becomes the job, so its exit \
code is the job's; 127 the command was not found, 126 it cannot be executed. `doctor` tells what it found: 0 nothing worse \
than a note, 3 warnings, 4 problems.";

#[derive(Subcommand)]
enum Command {
    /// Start a job under the library
    Run(run::Run),
    /// Show what jobs did with GPU memory
    Inspect(inspect::Inspect),
    /// Tell what would go wrong with a job here, before it is lost
    Doctor(doctor::Doctor),
    #[command(name = doctor::PROBE, hide = true)]
    Probe(doctor::Probe),
    /// Tell what other strategies would have reserved for the same requests
    Replay(replay::Replay),
    /// Put ledger, driver and NVML side by side and name every byte of difference
    Reconcile(reconcile::Reconcile),
    /// Answers `reconcile` about devices, in a process of its own
    #[command(name = nvml::SUBCOMMAND, hide = true)]
    AskNvml(reconcile::AskNvml),
    /// Show all devices and processes under the library as they are now
    Top(top::Top),
    /// List the environment variables that the library and the program read
    Variables(variables::Variables),
}

pub fn main() -> ExitCode {
    // Rust ignores SIGPIPE from the start. With it, `vramshim inspect | head` ends as quietly as every other tool, and
    // a job that `run` becomes finds the signal as it expects it.
    // SAFETY: nothing else runs yet, and the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let done = match Arguments::parse().command {
        Command::Run(run) => run.start(),
        Command::Inspect(inspect) => inspect.show(),
        Command::Doctor(doctor) => doctor.examine(),
        Command::Probe(probe) => probe.answer(),
        Command::Replay(replay) => replay.play(),
        Command::Reconcile(reconcile) => reconcile.show(),
        Command::AskNvml(question) => question.answer(),
        Command::Top(top) => top.show(),
        Command::Variables(variables) => variables.show(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for line in failure.message().lines() {
                eprintln!("vramshim: {line}");
            }
            ExitCode::from(failure.code())
        }
    }
}
