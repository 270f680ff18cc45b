//! What a run will do: its devices, the memory that workers may hold, and how workers are started.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use config::table;
use policy::Strategy;

use super::{Stress, WORKER};
use crate::analysis::names::result_name;
use crate::commands::doctor;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::library::{check_loads, find_library};
use crate::render::format::size;
use crate::stress::baseline::Device;
use crate::stress::outcome::Order;
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

/// Settings of a job that would stand between the worker and the driver's figures, or change its memory by themselves.
const NOT_FOR_WORKERS: [&str; 8] = [
    table::POD_LIMIT.name,
    table::LIMIT.name,
    table::PADDLES_LIMIT.name,
    table::ACCOUNTS.name,
    table::IDLE_RELEASE.name,
    table::MAX_REQUEST.name,
    table::SURGE.name,
    table::STACKS.name,
];

pub struct Plan {
    pub seed: u64,
    pub cuda_version: i32,
    pub driver: Option<String>,
    /// Without turns.
    pub devices: Vec<Device>,
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
        Ok(Plan {
            seed,
            cuda_version: driver.version.unwrap_or(0),
            driver: driver.release,
            devices: driver
                .devices
                .iter()
                .map(|device| device_of(device, options))
                .collect::<Result<_, _>>()?,
            folder: std::path::absolute(format!("vramshim-stress-{seed}")).map_err(Failure::failed)?,
            environment,
        })
    }

    pub fn turn(&self, options: &Stress, device: &Device, strategy: Strategy) -> Turn {
        let folder = self
            .folder
            .join(format!("device{}-{}", device.ordinal, strategy.name()));
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORKER);
        for name in NOT_FOR_WORKERS {
            command.env_remove(name);
        }
        self.environment.apply(&mut command, &self.environment.preloads());
        command
            .env(table::STRATEGY.name, strategy.name())
            .env(table::DIRECTORY.name, &folder)
            .env(table::JOURNAL_MAX.name, JOURNAL_MAX)
            .env(table::LOG.name, "warn");
        if strategy.reserves_up_front() {
            // It would reserve nearly the whole device.
            let part_mib = ((device.memory_bytes / 4) >> 20).max(8).to_string();
            command.envs(strategy.sizes().iter().map(|&(name, _)| (name, &part_mib)));
        }
        let sim = options
            .sim
            .map_or_else(String::new, |simulated| format!(" --sim {simulated}"));
        Turn {
            command,
            order: Order {
                device: device.ordinal,
                uuid: device.uuid.clone(),
                strategy: strategy.name().to_owned(),
                seed: self.seed,
                time_ms: options.share().as_millis() as u64,
                memory: device.memory_bytes,
                passes_through: strategy == Strategy::Passthrough,
                bound: BOUND.min(device.memory_bytes / PART_OF_MEMORY),
                patience: options.timeout,
            },
            again: format!(
                "CUDA_VISIBLE_DEVICES={} vramshim stress --strategy {} --seed {} --memory {}B{sim}",
                device.uuid,
                strategy.name(),
                self.seed,
                device.memory_bytes
            ),
            folder,
        }
    }
}

fn device_of(device: &doctor::DriverDevice, options: &Stress) -> Result<Device, Failure> {
    let named = |what: &str| format!("device {}: {what}", device.ordinal);
    if let Some((function, code)) = &device.context_error {
        return Err(Failure::failed(named(&format!(
            "{function} answered {} ({code})",
            result_name(*code)
        ))));
    }
    let free = device
        .free_memory
        .ok_or_else(|| Failure::failed(named("cuMemGetInfo does not answer")))?;
    let usual = (free / 4).min(if options.sim.is_some() {
        MOST_SIMULATED
    } else {
        u64::MAX
    });
    let most = options.memory.unwrap_or(usual);
    if !(LEAST_MEMORY..=free).contains(&most) {
        return Err(Failure::refused(named(&format!(
            "a worker would hold {} of the {} that are free; give {} or more, and no more than is free, with --memory",
            size(most),
            size(free),
            size(LEAST_MEMORY)
        ))));
    }
    Ok(Device {
        ordinal: device.ordinal,
        uuid: device.uuid.clone().unwrap_or_default(),
        name: device.name.clone(),
        total_bytes: device.total_memory,
        memory_bytes: most,
        turns: Vec::new(),
    })
}
