//! What a run will do: its devices, the memory that workers may hold, and how workers are started.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use config::table;
use policy::Strategy;

use super::{Stress, WORKER};
use crate::analysis::names::result_name;
use crate::analysis::slack::PAGE;
use crate::commands::doctor::{self, DriverDevice};
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::library::{check_loads, find_library};
use crate::render::format::size;
use crate::stress::baseline::Device;
use crate::stress::outcome::{Kind, Order};
use crate::stress::turn::Turn;

/// Workers that may hold less than this cannot take blocks of all sizes.
const LEAST_MEMORY: u64 = 32 << 20;
/// The memory of a simulated GPU is that of this machine.
const MOST_SIMULATED: u64 = 512 << 20;
/// A journal of a worker is not longer than this; what follows is not needed to look into a fault.
const JOURNAL_MAX: &str = "1GiB";
/// The bytes by which figures of driver, NVML and ledger may differ, and how much less that is for a small worker.
const BOUND: u64 = 64 << 20;
const PART_OF_MEMORY: u64 = 32;
/// How long the driver may take to say which devices there are.
const TIME_OF_THE_DRIVER: Duration = Duration::from_secs(60);

pub struct Plan {
    pub seed: u64,
    pub driver: doctor::Driver,
    folder: PathBuf,
    environment: Environment,
}

impl Plan {
    pub fn new(options: &Stress) -> Result<Plan, Failure> {
        let library = find_library(None)?;
        check_loads(&library)?;
        let simulated = options.sim.map(|simulated| simulated.find()).transpose()?;
        let (stand_ins, variables) = simulated.map_or_else(Default::default, |(simulator, variables)| {
            (simulator.preloads(), variables)
        });
        let environment = Environment::new(variables, Some(library), stand_ins);
        let driver = doctor::ask_driver(&environment, TIME_OF_THE_DRIVER)?;
        let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
        let folder = std::path::absolute(format!("vramshim-stress-{seed}")).map_err(Failure::failed)?;
        Ok(Plan {
            seed,
            driver,
            folder,
            environment,
        })
    }

    /// A device that the run uses, without turns.
    pub fn device(&self, device: &DriverDevice, options: &Stress) -> Result<Device, Failure> {
        let failed = |what: String| Failure::failed(format!("device {}: {what}", device.ordinal));
        if let Some((function, code)) = &device.context_error {
            return Err(failed(format!("{function} answered {} ({code})", result_name(*code))));
        }
        let free = device
            .free_memory
            .ok_or_else(|| failed("cuMemGetInfo does not answer".to_owned()))?;
        let most = if options.sim.is_some() {
            MOST_SIMULATED
        } else {
            u64::MAX
        };
        // A power of two, so that a device with a little more or less free memory plays the same again.
        let memory_bytes = 1 << (free / 4).clamp(1, most).ilog2();
        if memory_bytes < LEAST_MEMORY {
            let [free, least] = [free, 4 * LEAST_MEMORY].map(size);
            return Err(failed(format!(
                "only {free} are free: a worker uses a quarter of {least} or more"
            )));
        }
        Ok(Device {
            ordinal: device.ordinal,
            uuid: device.uuid.clone().unwrap_or_default(),
            name: device.name.clone(),
            total_bytes: device.total_memory,
            memory_bytes,
            turns: Vec::new(),
        })
    }

    pub fn turn(&self, options: &Stress, device: &Device, strategy: Strategy) -> Turn {
        let (ordinal, uuid, memory, seed) = (device.ordinal, &device.uuid, device.memory_bytes, self.seed);
        let folder = self.folder.join(format!("device{ordinal}-{}", strategy.name()));
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORKER);
        // What the user has set for jobs would stand between the worker and the driver's figures.
        for variable in table::VARIABLES {
            command.env_remove(variable.name);
        }
        self.environment.apply(&mut command, &self.environment.preloads());
        command
            .env(table::STRATEGY.name, strategy.name())
            .env(table::DIRECTORY.name, &folder)
            .env(table::JOURNAL_MAX.name, JOURNAL_MAX)
            .env(table::LOG.name, "warn");
        if strategy.reserves_up_front() {
            // It would reserve nearly the whole device.
            let part_mib = ((memory / 4) >> 20).max(8).to_string();
            command.envs(strategy.sizes().iter().map(|&(name, _)| (name, &part_mib)));
        }
        let sim = options
            .sim
            .map_or_else(String::new, |simulated| format!(" --sim {simulated}"));
        let asked = self.driver.devices.iter().find(|asked| asked.ordinal == ordinal);
        let has = |kind: &Kind| match kind {
            Kind::Linear => true,
            Kind::Async => asked.is_some_and(|asked| asked.pools),
            Kind::Mapped => asked.is_some_and(|asked| asked.vmm),
        };
        Turn {
            command,
            order: Order {
                device: ordinal,
                uuid: uuid.clone(),
                strategy: strategy.name().to_owned(),
                passes_through: strategy == Strategy::Passthrough,
                kinds: Kind::ALL.into_iter().filter(has).collect(),
                granule: asked.and_then(|asked| asked.granularity).unwrap_or(PAGE),
                seed,
                time_ms: options.share().as_millis() as u64,
                memory,
                bound: BOUND.min(memory / PART_OF_MEMORY),
                patience: options.timeout,
            },
            again: format!(
                "CUDA_VISIBLE_DEVICES={uuid} vramshim stress --strategy {} --seed {seed}{sim}",
                strategy.name()
            ),
            folder,
        }
    }
}
