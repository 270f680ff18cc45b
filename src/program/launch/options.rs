//! The options that set up a job. `run` starts a job with them; `doctor` checks what such a job would find.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use base::units::{lacks_unit, parse_size};
use clap::Args;
use config::{ConfigError, table};
use policy::Strategy;

use super::library::{find_library, preload};
use super::python::Torch;
use super::simulator::Simulator;
use crate::failure::Failure;

const STRATEGY: &str = table::STRATEGY.name;
const LIMIT: &str = table::LIMIT.name;

/// Environment variables that are set for the job, with their values.
pub type Variables = Vec<(&'static str, OsString)>;

/// The options of `run` and of `doctor`.
#[derive(Args)]
pub struct JobOptions {
    #[arg(long, short, value_name = "NAME", help = strategy_help())]
    strategy: Option<OsString>,

    /// Folder for the journals; each process writes one file [default: ./vramshim-<job>]
    #[arg(long, short, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Bytes of each device that the job may hold: 8GiB, 50%, or by device number or UUID: 0=8GiB,1=50%
    #[arg(long, value_name = "LIMIT")]
    limit: Option<OsString>,

    /// Folder of the shared accounts; processes that name the same folder share the limit
    #[arg(long, value_name = "FOLDER")]
    accounts: Option<PathBuf>,

    /// What happens in a job that imports PyTorch [default: PyTorch keeps its allocator, and the journal has no tensors]
    #[arg(long, value_name = "MODE")]
    torch: Option<Torch>,

    /// Use a simulated GPU with this much memory, such as 512MiB or 80GiB; no real GPU is needed
    #[arg(long, value_name = "SIZE")]
    sim: Option<String>,

    /// Number of simulated GPUs, each with the memory of --sim
    #[arg(long, value_name = "N", default_value_t = 1, requires = "sim", value_parser = clap::value_parser!(u32).range(1..=32))]
    sim_devices: u32,

    /// Path of the library [default: $VRAMSHIM_LIBRARY, or libvramshim.so in this program's folder or in ../lib]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

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

    /// The strategy that `--torch allocator` implies if none is chosen. As PyTorch's allocator, `passthrough` would make
    /// each tensor a call of the driver.
    fn implied_strategy(&self) -> Option<Strategy> {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let chosen = self.strategy.is_some() || is_set(STRATEGY) || is_set(table::PADDLES_STRATEGY.name);
        (self.torch == Some(Torch::Allocator) && !chosen).then_some(Strategy::AutoGrowth)
    }

    /// What `run` says about a choice that the user did not make.
    pub fn remark(&self) -> Option<String> {
        let strategy = self.implied_strategy().filter(|_| !self.quiet)?;
        Some(format!(
            "--torch allocator without a strategy: {} serves the tensors; --strategy chooses another",
            strategy.name()
        ))
    }

    /// All variables that `run` sets for the job, including `LD_PRELOAD`.
    pub fn environment(&self) -> Result<Variables, Failure> {
        let mut environment = self.variables()?;
        let library = find_library(self.library.as_deref())?;
        environment.extend(self.for_python(&library)?);
        let mut preloads = vec![library];
        if let Some((simulator, variables)) = self.simulator()? {
            preloads.extend(simulator.preloads());
            environment.extend(variables);
        }
        environment.push(("LD_PRELOAD", preload(&preloads)?));
        Ok(environment)
    }

    /// The variables of `--torch` for a job under the library at `library`.
    pub fn for_python(&self, library: &Path) -> Result<Variables, Failure> {
        self.torch.map_or(Ok(Vec::new()), |torch| torch.variables(library))
    }

    /// The variables for the options, without `--library`, `--sim`, and the hook of `--torch`.
    pub fn variables(&self) -> Result<Variables, Failure> {
        let mut environment = Vec::new();
        if let Some(strategy) = &self.strategy {
            // An empty variable counts as not set, so the option would have no effect.
            if strategy.is_empty() {
                return Err(Failure::refused(
                    "--strategy \"\": give a name, or leave the option out",
                ));
            }
            environment.push((STRATEGY, strategy.clone()));
        }
        if let Some(strategy) = self.implied_strategy() {
            environment.push((STRATEGY, strategy.name().into()));
        }
        if let Some(folder) = &self.dir {
            environment.push((table::DIRECTORY.name, absolute_folder("--dir", folder)?.into()));
        }
        if let Some(limit) = &self.limit {
            self.check_limit(&limit.to_string_lossy())?;
            environment.push((LIMIT, limit.clone()));
        }
        if let Some(folder) = &self.accounts {
            environment.push((table::ACCOUNTS.name, absolute_folder("--accounts", folder)?.into()));
        }
        if self.quiet {
            environment.push((table::LOG.name, "error".into()));
        }
        Ok(environment)
    }

    /// Refuses a limit that was most likely meant otherwise: a small number without a unit, or a device that is not
    /// there. Whether the text is a limit at all is not checked here.
    fn check_limit(&self, limit: &str) -> Result<(), Failure> {
        for part in limit.split(',') {
            let (device, amount) = part
                .split_once('=')
                .map_or((None, part), |(device, amount)| (Some(device), amount));
            let option = device.map_or("--limit".to_owned(), |device| format!("--limit {}=...", device.trim()));
            with_unit(&option, amount)?;
            let number: Option<u32> = device.and_then(|device| device.trim().parse().ok());
            if let (Some(number), Some(count)) = (number, self.device_count())
                && number >= count
            {
                return Err(Failure::refused(match count {
                    1 => format!("--limit {part}: there is no device {number}, only device 0"),
                    _ => format!(
                        "--limit {part}: there is no device {number}, only devices 0 to {}",
                        count - 1
                    ),
                }));
            }
        }
        Ok(())
    }

    /// How many devices a job can see at most; `None` if that is not known here.
    fn device_count(&self) -> Option<u32> {
        if self.sim.is_some() {
            return Some(self.sim_devices);
        }
        let devices = std::fs::read_dir("/proc/driver/nvidia/gpus").ok()?.count();
        u32::try_from(devices).ok().filter(|&count| count > 0)
    }

    /// The simulated GPU, if `--sim` asks for it, and the variables that make a job use it.
    pub fn simulator(&self) -> Result<Option<(Simulator, Variables)>, Failure> {
        let Some(size) = &self.sim else { return Ok(None) };
        with_unit("--sim", size)?;
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

/// Refuses a small number without a unit as the value of `option`.
pub fn with_unit(option: &str, size: &str) -> Result<(), Failure> {
    if !lacks_unit(size) {
        return Ok(());
    }
    let number = size.trim();
    Err(Failure::refused(format!(
        "{option} {number} is {number} bytes; type {number}GiB for GiB, or {number}B if you mean bytes"
    )))
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
