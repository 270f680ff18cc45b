//! `vramshim run`: checks the settings, preloads the library, and becomes the job.
//!
//! The program replaces itself with the command. The job therefore has this process's id and terminal, receives signals
//! directly, and gives the exit code itself.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use config::{Config, Unknown, unknown_variables};
use policy::Strategy;

use super::variables;
use crate::failure::Failure;
use crate::launch::broken_pipe;
use crate::launch::options::JobOptions;
use crate::say::say;

const EXAMPLES: &str = "\
Examples:
  vramshim run -- python train.py
  vramshim run --dir ranks -- torchrun --nproc-per-node 8 train.py
  vramshim run --torch allocator -- python train.py   # auto_growth has tensors
  vramshim run --limit 8GiB --accounts /dev/shm/team -- python train.py
  vramshim run --sim 2x80GiB -- python train.py       # no GPU needed

Exit codes: those of the command; 2 if a setting cannot be used, 126 if the command cannot be executed, 127 if it is not found.";

#[derive(Args)]
#[command(after_help = after_help(), after_long_help = format!("{}\n\nEnvironment variables:\n{}", after_help(), variables::text()))]
pub struct Run {
    #[command(flatten)]
    options: JobOptions,

    /// The command to run, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A line for each strategy, then the examples.
fn after_help() -> String {
    let lines = Strategy::ALL
        .iter()
        .map(|strategy| format!("  {:<16}{}\n", strategy.name(), strategy.description()));
    format!("Strategies:\n{}\n{EXAMPLES}", lines.collect::<String>())
}

impl Run {
    pub fn start(self) -> Result<(), Failure> {
        let (environment, no_library) = self.options.environment()?;
        no_library.map_or(Ok(()), Err)?;
        // A library that needs a newer glibc would end the job, and every program that the job starts.
        let parts: Vec<PathBuf> = environment.parts().cloned().collect();
        environment.check_loads(&parts)?;
        let (config, errors) = Config::read(|name| environment.get(name));
        if !errors.is_empty() {
            let lines: Vec<String> = errors.iter().map(|error| self.options.as_given(error)).collect();
            return Err(Failure::refused(lines.join("\n")));
        }
        self.options.check_devices(&config.quota)?;
        self.options.check_folder(&config)?;
        let unknown = unknown_variables(std::env::vars_os().map(|(name, _)| name));
        if !unknown.is_empty() {
            let lines: Vec<String> = unknown.iter().map(Unknown::to_string).collect();
            return Err(Failure::refused(lines.join("\n")));
        }
        for remark in self.options.remarks(&environment, &config, &self.command) {
            say!("{remark}");
        }
        environment.enter()?;
        Err(become_command(&self.command))
    }
}

/// Replaces this program by the command; returns only if that fails. `exec` of the standard library is not used,
/// because it clears the signal mask, which the job must inherit.
fn become_command(command: &[OsString]) -> Failure {
    let arguments: Result<Vec<CString>, _> = command
        .iter()
        .map(|argument| CString::new(argument.as_bytes()))
        .collect();
    let Ok(arguments) = arguments else {
        return Failure::refused("the command holds a NUL byte");
    };
    let mut pointers: Vec<*const libc::c_char> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    broken_pipe::is_as_inherited();
    // SAFETY: `pointers` is a NULL-terminated array of NUL-terminated strings with at least one entry, and both live
    // until the call returns.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    let error = io::Error::last_os_error();
    let name = command[0].to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            127,
            format!("{name}: command not found; check its name, its #! line and PATH"),
        ),
        _ => Failure::new(126, format!("{name}: cannot be executed: {error}")),
    }
}
