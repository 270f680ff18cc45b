//! The options that set up a job. `run` starts a job with them; `doctor` checks what such a job would find.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::process::job_name_of;
use base::text::shown;
use clap::{Args, ValueEnum};
use config::{Config, ConfigError, default_folder, table};
use policy::Strategy;

use super::devices;
use super::environment::{Environment, Variables};
use super::folder;
use super::library::{find_host_guard, find_library};
use super::python::Torch;
use super::simulator::Simulated;
use crate::failure::Failure;

const STRATEGY: &str = table::STRATEGY.name;
const LIMIT: &str = table::LIMIT.name;
const HOST_GUARD: &str = table::HOST_GUARD.name;
const STACKS: &str = table::STACKS.name;
/// The variable by which NVTX finds the library that its marks go to.
const NVTX: &str = "NVTX_INJECTION64_PATH";

/// The options of `run` and of `doctor`.
#[derive(Args)]
pub struct JobOptions {
    #[arg(long, short, value_name = "NAME", help = strategy_help())]
    strategy: Option<OsString>,

    /// Folder for the journals; each process writes one file [default: ./vramshim-<job>]
    #[arg(long, short, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Bytes of each device that the job may hold: 8GiB, 50%, or by device number or UUID: 0=8GiB,1=50%. 0 is no
    /// limit [default: $VRAMSHIM_MEMORY_LIMIT, no limit]
    #[arg(long, value_name = "LIMIT")]
    limit: Option<OsString>,

    /// Bytes of host memory that one call may ask for, at least 1MiB, such as 256GiB: a larger malloc or mmap gets
    /// ENOMEM, and its stack is told. 0 is no guard [default: $VRAMSHIM_HOST_GUARD, no guard]
    #[arg(long, value_name = "SIZE")]
    host_guard: Option<OsString>,

    /// Folder of the shared accounts; processes that name the same folder share the limit
    #[arg(long, value_name = "FOLDER")]
    accounts: Option<PathBuf>,

    /// What happens in a job that imports PyTorch [default: $VRAMSHIM_TORCH, state; record with stacks of Python, off with native ones alone]
    #[arg(long, value_name = "MODE")]
    torch: Option<Torch>,

    /// Which stacks the journal keeps of calls that allocate: python, native, both or off. With python or both, PyTorch's
    /// own record (--torch record) has every tensor [default: $VRAMSHIM_STACKS, off]
    #[arg(long, value_name = "KINDS")]
    stacks: Option<OsString>,

    /// Let the job answer vramshim ctl: its user and root can ask for its figures and change some settings
    #[arg(long)]
    control: bool,

    /// Use a simulated GPU with this much memory, such as 80GiB, or two such as 2x80GiB; no real GPU is needed. The programs
    /// that one run starts share it
    #[arg(long, value_name = "SIZE", value_parser = Simulated::parse)]
    sim: Option<Simulated>,

    /// Path of the library [default: $VRAMSHIM_LIBRARY, or libvramshim.so in this program's folder or in ../lib]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// Let the library write only errors to standard error
    #[arg(long, short)]
    quiet: bool,
}

fn strategy_help() -> String {
    format!(
        "The strategy that divides device memory: {} [default: $VRAMSHIM_STRATEGY, $FLAGS_allocator_strategy, {}; with \
         --torch allocator {}]",
        Strategy::accepted(),
        Strategy::Passthrough.name(),
        Strategy::AutoGrowth.name()
    )
}

impl JobOptions {
    /// The text of an error. If the value came from an option, the text names the option instead of the variable.
    pub fn as_given(&self, error: &ConfigError) -> String {
        let given = self.values().into_iter();
        let mut given = given.filter(|(_, variable, value)| *variable == error.variable && value.is_some());
        let Some((option, ..)) = given.next() else {
            return error.to_string();
        };
        format!(
            "{option} {:?} is not accepted{}; accepted: {}",
            error.value,
            error.reason(),
            error.accepted
        )
    }

    /// The options that are the values of variables, which `Config` reads.
    fn values(&self) -> [(&'static str, &'static str, Option<&OsString>); 4] {
        [
            ("--strategy", STRATEGY, self.strategy.as_ref()),
            ("--limit", LIMIT, self.limit.as_ref()),
            ("--host-guard", HOST_GUARD, self.host_guard.as_ref()),
            ("--stacks", STACKS, self.stacks.as_ref()),
        ]
    }

    /// Whether requests for host memory have a bound.
    fn guards_host(&self) -> bool {
        let given = self.host_guard.clone().or_else(|| std::env::var_os(HOST_GUARD));
        given.is_some_and(|text| !matches!(text.to_string_lossy().trim(), "" | "0"))
    }

    /// The kinds of stacks that the user asked for; none if they are not understood.
    fn kinds_of_stacks(&self) -> config::Stacks {
        let asked = self.stacks.clone().or_else(|| std::env::var_os(STACKS));
        let kinds = config::Stacks::parse(asked.unwrap_or_default().to_string_lossy().trim());
        kinds.unwrap_or(config::Stacks::Off)
    }

    /// The strategy that `--torch allocator` implies if none is chosen. As PyTorch's allocator, `passthrough` would make
    /// each tensor a call of the driver.
    fn implied_strategy(&self) -> Option<Strategy> {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let chosen = self.strategy.is_some() || is_set(STRATEGY) || is_set(table::PADDLES_STRATEGY.name);
        (self.torch == Some(Torch::Allocator) && !chosen).then_some(Strategy::AutoGrowth)
    }

    /// What `run` says: where the journals will be, and of choices that the user did not make or that have no effect.
    /// `environment` and `config` are the job's.
    pub fn remarks(&self, environment: &Environment, config: &Config, command: &[OsString]) -> Vec<String> {
        if self.quiet {
            return Vec::new();
        }
        let implied = self.implied_strategy().map(|strategy| {
            let name = strategy.name();
            format!("--torch allocator without a strategy: {name} serves the tensors; --strategy chooses another")
        });
        let is_unlimited = self.accounts.is_some() && config.quota.limits.is_empty();
        let unlimited = is_unlimited.then(|| {
            "--accounts without a limit refuses nothing: the accounts only count, and processes give idle memory back for \
             each other on a full device; --limit sets the limit that they share"
                .to_owned()
        });
        let missing = self.missing_hook(environment);
        [recording(config, command), implied, unlimited, missing]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The job's environment, and why the library was not found.
    pub fn environment(&self) -> Result<(Environment, Option<Failure>), Failure> {
        let mut variables = self.variables()?;
        let (library, why) = match find_library(self.library.as_deref()) {
            Ok(library) => (Some(library), None),
            Err(failure) => (None, Some(failure)),
        };
        let mut beside = Vec::new();
        if let Some(library) = &library {
            variables.extend(self.for_python(library)?);
            if std::env::var_os(NVTX).is_none_or(|other| other.is_empty()) {
                variables.push((NVTX, library.clone().into()));
            }
            beside.extend(self.guards_host().then(|| find_host_guard(library)).transpose()?);
        }
        if let Some((stand_ins, own)) = self.sim.map(Simulated::find).transpose()? {
            variables.extend(own);
            beside.extend(stand_ins);
        }
        Ok((Environment::new(variables, library, beside), why))
    }

    /// The variables of `--torch` for a job under the library at `library`.
    fn for_python(&self, library: &Path) -> Result<Variables, Failure> {
        let variable = std::env::var(table::TORCH.name).ok().filter(|mode| !mode.is_empty());
        let asked_for = match (self.torch, variable) {
            (None, Some(mode)) => Some(Torch::from_str(&mode, false).map_err(|_| {
                let accepted = (table::TORCH.accepted)();
                Failure::refused(format!(
                    "{}={mode:?} is not accepted; accepted: {accepted}",
                    table::TORCH.name
                ))
            })?),
            (option, _) => option,
        };
        if let Some(torch) = asked_for {
            return torch.variables(library);
        }
        // PyTorch's operators give up Python's lock, so the library cannot read their Python frames. PyTorch itself can.
        // Native stacks are of what the library serves: PyTorch's segments.
        let torch = match self.kinds_of_stacks() {
            kinds if kinds.python() => Torch::Record,
            config::Stacks::Off => Torch::State,
            _ => Torch::Off,
        };
        // `missing_hook` says what is missing.
        Ok(torch.variables(library).unwrap_or_default())
    }

    /// What is not known because the Python part is missing, if nobody asked for it by `--torch`.
    pub fn missing_hook(&self, environment: &Environment) -> Option<String> {
        let is_missing = environment.own(table::TORCH.name).is_none();
        let library = environment.library.as_deref().filter(|_| is_missing && !self.quiet)?;
        let why = Torch::State.variables(library).err()?;
        Some(format!(
            "{}. Without it the lines of code that hold PyTorch's memory are not known",
            why.message()
        ))
    }

    /// The variables for the options, without those of `--library`, `--sim` and `--torch`.
    fn variables(&self) -> Result<Variables, Failure> {
        let mut environment = Vec::new();
        for (option, variable, value) in self.values() {
            // An empty variable counts as not set, so the option would have no effect.
            if value.is_some_and(|value| value.to_string_lossy().trim().is_empty()) {
                return Err(Failure::refused(format!(
                    "{option} \"\": give a value, or leave the option out"
                )));
            }
            environment.extend(value.map(|value| (variable, value.clone())));
        }
        let implied = self.implied_strategy();
        environment.extend(implied.map(|strategy| (STRATEGY, strategy.name().into())));
        if let Some(folder) = &self.dir {
            environment.push((table::DIRECTORY.name, absolute_folder("--dir", folder)?.into()));
        }
        environment.extend(self.control.then(|| (table::CONTROL.name, "1".into())));
        if let Some(folder) = &self.accounts {
            environment.push((table::ACCOUNTS.name, absolute_folder("--accounts", folder)?.into()));
        }
        environment.extend(self.quiet.then(|| (table::LOG.name, "error".into())));
        Ok(environment)
    }

    /// Refuses limits of devices that the job would not see, whether an option or the variable named them.
    pub fn check_devices(&self, quota: &quota::Settings) -> Result<(), Failure> {
        // The variables of a virtualisation layer may name devices that this job does not get.
        if quota.from != LIMIT {
            return Ok(());
        }
        let devices = self.sim.map_or_else(devices::of_machine, Simulated::uuids);
        let Some(problem) = devices::problem(&devices, &quota.limits) else {
            return Ok(());
        };
        let given = match &self.limit {
            Some(limit) => format!("--limit {}", limit.to_string_lossy()),
            None => format!(
                "{LIMIT}={}",
                std::env::var_os(LIMIT).unwrap_or_default().to_string_lossy()
            ),
        };
        Err(Failure::refused(format!("{given}: {problem}")))
    }

    /// Refuses a folder in which no journal can be written.
    pub fn check_folder(&self, config: &Config) -> Result<(), Failure> {
        let Some(folder) = config.directory.as_deref().filter(|_| config.journal_max > 0) else {
            return Ok(());
        };
        let Some(problem) = folder::unusable(folder) else {
            return Ok(());
        };
        let option = match self.dir {
            Some(_) => "--dir",
            None => table::DIRECTORY.name,
        };
        Err(Failure::refused(format!(
            "{option} {}: {problem}; the job would run without a journal",
            shown(folder)
        )))
    }
}

/// One line that says where the journals will be; `None` if none are kept.
fn recording(config: &Config, command: &[OsString]) -> Option<String> {
    if config.journal_max == 0 {
        return None;
    }
    if let Some(folder) = &config.directory {
        return Some(format!("journals go to {}", shown(folder)));
    }
    let mut line: Vec<u8> = Vec::new();
    for argument in command {
        line.extend_from_slice(argument.as_bytes());
        line.push(0);
    }
    let own = Path::new(".").join(default_folder(&job_name_of(&line)).path);
    let others = shown(&own.with_file_name("vramshim-NAME"));
    let own = shown(&own);
    Some(format!(
        "journals go to {own} (programs of other names that it starts: {others})"
    ))
}

fn absolute_folder(option: &str, folder: &Path) -> Result<PathBuf, Failure> {
    if folder.exists() && !folder.is_dir() {
        return Err(Failure::refused(format!(
            "{option} {}: not a folder; give one, it need not exist yet",
            shown(folder)
        )));
    }
    std::path::absolute(folder).map_err(|error| Failure::refused(format!("{option} {}: {error}", shown(folder))))
}
