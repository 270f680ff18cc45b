//! `vramshim run`: checks the settings, puts the library in front, and becomes the job.
//!
//! The program replaces itself with the command, so exit code, signals, terminal and process id are the job's own and
//! nothing stays behind to wait.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::units::parse_size;
use clap::Args;
use config::{Config, ConfigError};
use policy::Strategy;

use super::Failure;
use super::simulator::Simulator;

const LIBRARY: &str = "libvramshim.so";
const STRATEGY: &str = "VRAMSHIM_STRATEGY";
const LIMIT: &str = "VRAMSHIM_MEMORY_LIMIT";

/// Names and values that a job's environment gets.
pub type Variables = Vec<(&'static str, OsString)>;

const EXAMPLES: &str = "\
Examples:
  vramshim run -- python train.py
  vramshim run --strategy auto_growth --dir /data/journals -- torchrun --nproc-per-node 8 train.py
  vramshim run --limit 8GiB --accounts /dev/shm/team -- python train.py
  vramshim run --sim 80GiB --sim-devices 2 -- python train.py     # no GPU needed";

#[derive(Args)]
#[command(after_help = after_help())]
pub struct Run {
    #[command(flatten)]
    setting: Setting,

    /// The command to run; everything after it is its own
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What a job is started with.
#[derive(Args)]
pub struct Setting {
    #[arg(long, short, value_name = "NAME", help = strategy_help())]
    strategy: Option<OsString>,

    /// Folder for the journals, one file a process [default: ./vramshim-<job>]
    #[arg(long, short, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Memory the job may have of each device: 8GiB, 50%, or by number or UUID: 0=8GiB,1=50%
    #[arg(long, value_name = "LIMIT")]
    limit: Option<OsString>,

    /// Folder of the accounts that processes share; the limit holds for all of them together
    #[arg(long, value_name = "FOLDER")]
    accounts: Option<PathBuf>,

    /// Use a simulated GPU with this much memory, such as 512MiB or 80GiB
    #[arg(long, value_name = "SIZE")]
    sim: Option<String>,

    /// How many simulated GPUs, each with that memory
    #[arg(long, value_name = "N", default_value_t = 1, requires = "sim", value_parser = clap::value_parser!(u32).range(1..=32))]
    sim_devices: u32,

    /// The library to preload [default: $VRAMSHIM_LIBRARY, or libvramshim.so beside this program or in ../lib]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// Let the library report errors only
    #[arg(long, short)]
    quiet: bool,
}

fn strategy_help() -> String {
    format!(
        "How memory is carved up: {} [default: $VRAMSHIM_STRATEGY, $FLAGS_allocator_strategy, {}]",
        Strategy::accepted(),
        Strategy::Passthrough.name()
    )
}

/// The strategies with a line each, and the examples.
fn after_help() -> String {
    let lines = Strategy::ALL
        .iter()
        .map(|strategy| format!("  {:<16}{}\n", strategy.name(), strategy.description()));
    format!("Strategies:\n{}\n{EXAMPLES}", lines.collect::<String>())
}

impl Run {
    pub fn start(self) -> Result<(), Failure> {
        let environment = self.setting.environment()?;
        let own = |name: &str| {
            environment
                .iter()
                .find(|(own, _)| *own == name)
                .map(|(_, value)| value.clone())
        };
        Config::from_lookup(|name| own(name).or_else(|| std::env::var_os(name))).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(|error| self.setting.as_given(error)).collect();
            Failure::refused(lines.join("\n"))
        })?;
        for (name, value) in &environment {
            // SAFETY: the program has one thread.
            unsafe { std::env::set_var(name, value) };
        }
        Err(become_command(&self.command))
    }
}

impl Setting {
    /// An error that names what the user wrote: the option, where it became the variable.
    pub fn as_given(&self, error: &ConfigError) -> String {
        let option = match error.variable {
            STRATEGY if self.strategy.is_some() => "--strategy",
            LIMIT if self.limit.is_some() => "--limit",
            _ => return error.to_string(),
        };
        format!(
            "{option} {:?} is not accepted; accepted: {}",
            error.value, error.accepted
        )
    }

    /// The variables that differ for the job.
    fn environment(&self) -> Result<Variables, Failure> {
        let mut environment = self.variables()?;
        let mut preloads = vec![find_library(self.library.as_deref())?];
        if let Some((simulator, variables)) = self.simulator()? {
            preloads.extend(simulator.preloads());
            environment.extend(variables);
        }
        environment.push(("LD_PRELOAD", preload(&preloads)?));
        Ok(environment)
    }

    /// Those that an option stands for.
    pub fn variables(&self) -> Result<Variables, Failure> {
        let mut environment = Vec::new();
        if let Some(strategy) = &self.strategy {
            // As a variable it would be one that is not set.
            if strategy.is_empty() {
                return Err(Failure::refused(
                    "--strategy \"\": give a name, or leave the option out",
                ));
            }
            environment.push((STRATEGY, strategy.clone()));
        }
        if let Some(folder) = &self.dir {
            environment.push(("VRAMSHIM_DIR", absolute_folder("--dir", folder)?.into()));
        }
        if let Some(limit) = &self.limit {
            environment.push((LIMIT, limit.clone()));
        }
        if let Some(folder) = &self.accounts {
            environment.push(("VRAMSHIM_ACCOUNTS", absolute_folder("--accounts", folder)?.into()));
        }
        if self.quiet {
            environment.push(("VRAMSHIM_LOG", "error".into()));
        }
        Ok(environment)
    }

    /// The simulated GPU, if it is asked for, and how a job is pointed at it.
    pub fn simulator(&self) -> Result<Option<(Simulator, Variables)>, Failure> {
        let Some(size) = &self.sim else { return Ok(None) };
        let bytes = parse_size(size).filter(|&bytes| bytes > 0).ok_or_else(|| {
            Failure::refused(format!(
                "--sim {size:?} is no size; give bytes or a unit, such as 512MiB or 80GiB"
            ))
        })?;
        let simulator = Simulator::find()?;
        let variables = simulator.environment(bytes, self.sim_devices)?;
        Ok(Some((simulator, variables)))
    }
}

fn absolute_folder(option: &str, folder: &Path) -> Result<PathBuf, Failure> {
    if folder.exists() && !folder.is_dir() {
        return Err(Failure::refused(format!(
            "{option} {}: not a folder; give one, it need not exist yet",
            folder.display()
        )));
    }
    std::path::absolute(folder).map_err(|error| Failure::refused(format!("{option} {}: {error}", folder.display())))
}

pub fn find_library(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let from_environment = std::env::var_os("VRAMSHIM_LIBRARY")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    let told = match (given, &from_environment) {
        (Some(path), _) => Some((path, "--library")),
        (None, Some(path)) => Some((path.as_path(), "VRAMSHIM_LIBRARY")),
        (None, None) => None,
    };
    if let Some((path, whence)) = told {
        let path = path.canonicalize().map_err(|error| {
            Failure::refused(format!(
                "{whence} {}: {error}; give the path of {LIBRARY}",
                path.display()
            ))
        })?;
        return match path.is_file() {
            true => Ok(path),
            false => Err(Failure::refused(format!(
                "{whence} {}: not a file; give the path of {LIBRARY}",
                path.display()
            ))),
        };
    }
    let beside = own_folder();
    let places = [beside.join(LIBRARY), beside.join("../lib").join(LIBRARY)];
    places
        .iter()
        .filter(|place| place.is_file())
        .find_map(|place| place.canonicalize().ok())
        .ok_or_else(|| {
            Failure::refused(format!(
                "{LIBRARY} not found in {} or {}; give its path with --library or VRAMSHIM_LIBRARY",
                beside.display(),
                beside.join("../lib").display()
            ))
        })
}

/// Where this program lies; what belongs to it lies there too.
pub fn own_folder() -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.to_owned()))
        .unwrap_or_default()
}

/// `LD_PRELOAD` with these in front of what was there.
pub fn preload(libraries: &[PathBuf]) -> Result<OsString, Failure> {
    let mut items: Vec<Vec<u8>> = Vec::new();
    for library in libraries {
        let bytes = library.as_os_str().as_bytes();
        if bytes.iter().any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n')) {
            return Err(Failure::refused(format!(
                "{}: LD_PRELOAD cannot hold a path with a colon or a space; move or link the library elsewhere",
                library.display()
            )));
        }
        items.push(bytes.to_vec());
    }
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    for item in before
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b' '))
        .filter(|item| !item.is_empty())
    {
        if !items.iter().any(|present| present == item) {
            items.push(item.to_vec());
        }
    }
    Ok(OsStr::from_bytes(&items.join(&b':')).to_owned())
}

/// Replaces this program by the command; returns only if that fails. Not std's `exec`, which would empty the signal
/// mask that the job is to inherit.
fn become_command(command: &[OsString]) -> Failure {
    let words: Result<Vec<CString>, _> = command.iter().map(|word| CString::new(word.as_bytes())).collect();
    let Ok(words) = words else {
        return Failure::refused("the command holds a NUL byte");
    };
    let mut pointers: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: a NULL-terminated array of NUL-terminated strings, at least one of them.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    let error = io::Error::last_os_error();
    let name = command[0].to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => Failure {
            code: 127,
            message: format!("{name}: command not found; check its name, its #! line and PATH"),
        },
        _ => Failure {
            code: 126,
            message: format!("{name}: cannot be executed: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_a_preload_cannot_hold_are_refused() {
        for path in ["/a b/x.so", "/a:b/x.so"] {
            assert!(preload(&[path.into()]).is_err_and(|failure| failure.code == 2));
        }
        assert!(
            preload(&["/a/x.so".into(), "/b/y.so".into()])
                .is_ok_and(|text| { text.to_string_lossy().starts_with("/a/x.so:/b/y.so") })
        );
    }

    #[test]
    fn a_missing_library_names_where_it_was_told() {
        let failure = find_library(Some(Path::new("/nowhere/libvramshim.so"))).unwrap_err();
        assert!(
            failure.message.contains("--library /nowhere/libvramshim.so"),
            "{}",
            failure.message
        );
        assert_eq!(failure.code, 2);
    }
}
