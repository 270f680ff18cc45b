//! What a run will do: its devices, the memory that workers may hold, and how workers are started.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::text::shown;
use base::units::parse_size;
use config::table;
use policy::Strategy;

use super::{Stress, WORKER};
use crate::commands::doctor;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::library::{check_loads, find_library};
use crate::launch::options::{simulated, with_unit};
use crate::render::format::{many, size};
use crate::stress::baseline::Told;
use crate::stress::fault::{Fault, Kind};
use crate::stress::{Order, Outcome};

/// Workers that may hold less than this cannot take blocks of all sizes.
const LEAST_MEMORY: u64 = 32 << 20;
/// The memory of a simulated GPU is that of this machine.
const MOST_SIMULATED: u64 = 512 << 20;
/// A journal of a worker is not longer than this; what follows is not needed to look into a fault.
const JOURNAL_MAX: &str = "1GiB";
/// How long the driver may take to say which devices there are.
const TIME_OF_THE_DRIVER: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Settings of a job that would stand between the worker and the driver's figures, or change its memory by themselves.
const NOT_FOR_WORKERS: [&str; 7] = [
    table::LIMIT.name,
    table::PADDLES_LIMIT.name,
    table::ACCOUNTS.name,
    table::IDLE_RELEASE.name,
    table::MAX_REQUEST.name,
    table::SURGE.name,
    table::STACKS.name,
];

pub struct Device {
    pub ordinal: i32,
    pub uuid: String,
    pub name: String,
    pub total: u64,
    /// The most bytes that a worker may hold.
    pub memory: u64,
}

pub struct Plan {
    pub seed: u64,
    pub folder: PathBuf,
    pub bound: u64,
    pub devices: Vec<Device>,
    environment: Environment,
}

/// What `--memory` says.
enum Memory {
    Usual,
    Bytes(u64),
    PercentOfFree(u64),
}

impl Memory {
    fn parse(text: &str) -> Result<Memory, Failure> {
        let refused = || {
            Failure::refused(format!(
                "--memory {text:?} is no size; give bytes with a unit, such as 8GiB, or a share of what is free, such as 50%"
            ))
        };
        if let Some(percent) = text.trim().strip_suffix('%') {
            let percent = percent.trim().parse().ok().filter(|percent| (1..=90).contains(percent));
            return percent.map(Memory::PercentOfFree).ok_or_else(|| {
                Failure::refused(format!("--memory {text}: give a share from 1% to 90% of what is free"))
            });
        }
        with_unit("--memory", text)?;
        parse_size(text).map(Memory::Bytes).ok_or_else(refused)
    }
}

impl Plan {
    pub fn make(options: &Stress) -> Result<Plan, Failure> {
        with_unit("--bound", &options.bound)?;
        let bound = parse_size(&options.bound).ok_or_else(|| {
            Failure::refused(format!(
                "--bound {:?} is no size; give bytes or a unit, such as 64MiB",
                options.bound
            ))
        })?;
        let memory = options.memory.as_deref().map_or(Ok(Memory::Usual), Memory::parse)?;
        let library = find_library(options.library.as_deref())?;
        check_loads(&library)?;
        let (mut variables, mut stand_ins) = (Vec::new(), Vec::new());
        if let Some(size) = &options.sim {
            let (simulator, own) = simulated(size, options.sim_devices)?;
            stand_ins = simulator.preloads();
            variables = own;
        }
        let environment = Environment::new(variables, Some(library), stand_ins);
        let driver = doctor::ask_driver(&environment, TIME_OF_THE_DRIVER.min(options.timeout * 2))?;
        let all = driver.devices.iter();
        let all: Vec<&doctor::DriverDevice> = all.filter(|device| is_chosen(&options.device, device)).collect();
        let unknown = options
            .device
            .iter()
            .find(|name| !driver.devices.iter().any(|device| names(name, device)));
        if let Some(unknown) = unknown {
            let uuids = driver
                .devices
                .iter()
                .map(|device| device.uuid.clone().unwrap_or_default());
            let uuids: Vec<String> = uuids.collect();
            return Err(Failure::refused(format!(
                "--device {unknown}: no such device; the machine has {}: {}",
                many(uuids.len() as u64, "device"),
                uuids.join(", ")
            )));
        }
        let devices = all
            .into_iter()
            .map(|device| device_of(device, &memory, options.sim.is_some()));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        // Each run without --seed gets another number: each hasher of the standard library begins with random bits.
        let seed = options
            .seed
            .unwrap_or_else(|| RandomState::new().hash_one(std::process::id()) % 1_000_000_000);
        let folder = options
            .dir
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("vramshim-stress-{seed}")));
        let folder =
            std::path::absolute(&folder).map_err(|error| Failure::refused(format!("{}: {error}", shown(&folder))))?;
        if folder.exists() && !folder.is_dir() {
            return Err(Failure::refused(format!("--dir {}: not a folder", shown(&folder))));
        }
        Ok(Plan {
            seed,
            folder,
            bound,
            devices,
            environment,
        })
    }

    pub fn order(&self, options: &Stress, device: &Device, strategy: Strategy, share: Duration) -> Order {
        Order {
            device: device.ordinal,
            seed: self.seed,
            time_ms: share.as_millis() as u64,
            memory: device.memory,
            leaves_three_quarters: options.memory.is_none(),
            threads: options.threads as usize,
            passes_through: strategy == Strategy::Passthrough,
            calls: PathBuf::new(),
        }
    }

    /// The command that starts a worker, without the order.
    pub fn command(&self, device: &Device, strategy: Strategy, folder: &Path) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORKER);
        for name in NOT_FOR_WORKERS {
            command.env_remove(name);
        }
        self.environment.apply(&mut command, &self.environment.preloads());
        command
            .env(table::STRATEGY.name, strategy.name())
            .env(table::DIRECTORY.name, folder)
            .env(table::JOURNAL_MAX.name, JOURNAL_MAX)
            .env(table::LOG.name, "warn");
        if strategy.reserves_up_front() {
            // It would reserve nearly the whole device.
            for variable in strategy.sizes() {
                let part = (device.memory / 4 / MIB).max(8);
                command.env(variable.name, part.to_string());
            }
        }
        command
    }

    /// What is needed to look into the fault of a turn.
    pub fn told(
        &self,
        options: &Stress,
        device: &Device,
        strategy: Strategy,
        outcome: &Outcome,
        folder: &Path,
    ) -> Told {
        let mut again = format!(
            "vramshim stress --strategy {} --device {}",
            strategy.name(),
            device.uuid
        );
        let mut add = |option: &str, value: &str| again.push_str(&format!(" {option} {value}"));
        add("--seed", &self.seed.to_string());
        add("--memory", &format!("{}B", device.memory));
        add("--threads", &options.threads.to_string());
        if let Some(size) = &options.sim {
            add("--sim", size);
            add("--sim-devices", &options.sim_devices.to_string());
        }
        Told {
            fault: Fault::new(Kind::NotStarted, String::new()),
            round: outcome.rounds,
            again,
            folder: folder.display().to_string(),
        }
    }
}

fn names(name: &str, device: &doctor::DriverDevice) -> bool {
    match name.trim().parse::<i32>() {
        Ok(number) => number == device.ordinal,
        Err(_) => device.uuid.as_deref() == Some(name.trim()),
    }
}

fn is_chosen(chosen: &[String], device: &doctor::DriverDevice) -> bool {
    chosen.is_empty() || chosen.iter().any(|name| names(name, device))
}

fn device_of(device: &doctor::DriverDevice, memory: &Memory, is_simulated: bool) -> Result<Device, Failure> {
    let named = |what: &str| format!("device {}: {what}", device.ordinal);
    if let Some((function, code)) = &device.context_error {
        let name = crate::analysis::names::result_name(*code);
        return Err(Failure::failed(named(&format!("{function} answered {name} ({code})"))));
    }
    let free = device
        .free_memory
        .ok_or_else(|| Failure::failed(named("cuMemGetInfo does not answer")))?;
    let most = match memory {
        Memory::Usual if is_simulated => (free / 4).min(MOST_SIMULATED),
        Memory::Usual => free / 4,
        Memory::Bytes(bytes) => *bytes,
        Memory::PercentOfFree(percent) => free / 100 * percent,
    };
    if most > free {
        return Err(Failure::refused(named(&format!(
            "--memory {} is more than the {} that are free",
            size(most),
            size(free)
        ))));
    }
    if most < LEAST_MEMORY {
        return Err(Failure::refused(named(&format!(
            "a worker would have {} of the {} that are free, but needs {}; give more with --memory, or free some",
            size(most),
            size(free),
            size(LEAST_MEMORY)
        ))));
    }
    Ok(Device {
        ordinal: device.ordinal,
        uuid: device.uuid.clone().unwrap_or_default(),
        name: device.name.clone(),
        total: device.total_memory,
        memory: most,
    })
}
