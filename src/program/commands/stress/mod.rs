//! `vramshim stress`: makes the driver work under each strategy, and says whether ledger, driver and NVML agreed all the
//! while.

mod page;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use base::text::shown;
use clap::Args;
use config::table;
use policy::Strategy;

use super::doctor::{self, DriverDevice};
use crate::analysis::names::result_name;
use crate::analysis::slack::PAGE;
use crate::failure::Failure;
use crate::launch::environment::Environment;
use crate::launch::library::find_library;
use crate::launch::processes;
use crate::launch::simulator::Simulated;
use crate::render::{format, progress};
use crate::stress;
use crate::stress::baseline::{Baseline, Comparison, Device, VERSION};
use crate::stress::outcome::{Kind, Order, Outcome};
pub use crate::stress::work;

/// The hidden subcommand that a worker runs.
pub const WORKER: &str = "stress-worker";

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXAMPLES: &str = "\
Examples:
  vramshim stress                                   # ten minutes
  vramshim stress --quick --json > baseline.json    # 15 seconds
  vramshim stress --against baseline.json           # what changed
  CUDA_VISIBLE_DEVICES=0 vramshim stress --strategy auto_growth --seed 4711

Exit codes: 0 nothing broke; 1 something broke, or the driver does not answer; 2 wrong usage, or a baseline that cannot be \
used.";

/// How long each strategy is used with `--quick`.
const QUICK: Duration = Duration::from_secs(5);
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// Workers that may hold less than this cannot take blocks of all sizes.
const LEAST_MEMORY: u64 = 32 << 20;
/// The memory of a simulated GPU is that of this machine.
const MOST_SIMULATED: u64 = 512 << 20;
/// The bytes by which figures of driver, NVML and ledger may differ; of a small worker, a part of its memory.
const BOUND: u64 = 64 << 20;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Stress {
    /// How long to work on each device, such as 30s, 10m or 2h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = super::time)]
    time: Duration,

    /// Work for 5 seconds with each strategy
    #[arg(long, conflicts_with = "time")]
    quick: bool,

    /// The strategies, separated by commas [default: all]
    #[arg(long, short, value_name = "NAMES", value_delimiter = ',', value_parser = strategy)]
    strategy: Vec<Strategy>,

    /// The seed of sizes and orders; it is printed, and makes each thread ask for the same again [default: random]
    #[arg(long, value_name = "N", default_value_t = fastrand::u64(..1_000_000_000), hide_default_value = true)]
    seed: u64,

    /// Compare with the outcome of an earlier run, which --json printed
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,

    /// Print JSON: the outcome, and the comparison with --against
    #[arg(long)]
    json: bool,

    /// Use a simulated GPU with this much memory, such as 24GiB, or two such as 2x24GiB; no real GPU is needed
    #[arg(long, value_name = "SIZE", value_parser = Simulated::parse)]
    sim: Option<Simulated>,

    /// How long a call of the driver may take. Tests do not wait a minute.
    #[arg(long, default_value = "60s", value_parser = super::time, hide = true)]
    timeout: Duration,
}

/// The version of NVIDIA's driver, by its kernel module.
fn driver_release() -> Option<String> {
    let version = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(version.trim().to_owned())
}

/// The text of an error is for clap, which names option and value.
fn strategy(text: &str) -> Result<Strategy, String> {
    Strategy::parse(text.trim()).ok_or_else(|| format!("no strategy; accepted: {}", Strategy::accepted()))
}

impl Stress {
    pub fn work(mut self) -> Result<(), Failure> {
        let read = |path: &PathBuf| {
            Baseline::read(path).map_err(|why| Failure::refused(format!("--against {}: {why}", shown(path))))
        };
        let before = self.against.as_ref().map(read).transpose()?;
        if self.strategy.is_empty() {
            self.strategy = Strategy::ALL.to_vec();
        }
        if self.quick {
            self.time = QUICK * self.strategy.len() as u32;
        }
        processes::take_charge();
        let mut run = self.run();
        if let Ok(run) = &mut run {
            run.against = before.map(|before| Comparison::new(&before, run));
            super::print(self.json.then_some(&*run), |page| page::show(page, run))?;
        }
        if let Some(signal) = processes::interrupted() {
            processes::end_by(signal);
        }
        if run?.passed { Ok(()) } else { Err(Failure::answer(1)) }
    }

    /// Plays all turns: the devices at the same time, the strategies one after the other.
    fn run(&self) -> Result<Baseline, Failure> {
        let library = find_library(None)?;
        let (stand_ins, variables) = self.sim.map(Simulated::find).transpose()?.unwrap_or_default();
        let environment = Environment::new(variables, Some(library), stand_ins);
        environment.check_loads(&environment.preloads())?;
        let driver = doctor::ask_driver(&environment, self.timeout)?;
        let devices = driver.devices.iter().map(|device| self.device(device));
        let mut devices = devices.collect::<Result<Vec<Device>, Failure>>()?;
        let (bar, begun) = (progress::working(self.time), Instant::now());
        std::thread::scope(|scope| {
            let start = |(device, asked): (&'_ mut Device, &'_ DriverDevice)| {
                for strategy in &self.strategy {
                    if processes::interrupted().is_none() {
                        let outcome = self.turn(device, asked, *strategy, &environment);
                        device.turns.push(outcome);
                    }
                }
            };
            let both = devices.iter_mut().zip(&driver.devices);
            let threads: Vec<_> = both.map(|both| scope.spawn(move || start(both))).collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                bar.set_position(begun.elapsed().min(self.time).as_millis() as u64);
                std::thread::sleep(DRAW_EVERY);
            }
        });
        bar.finish_and_clear();
        let mut turns = devices.iter().flat_map(|device| &device.turns);
        let all_passed = turns.all(|turn| turn.is_done && turn.fault.is_none());
        Ok(Baseline {
            vramshim_baseline: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            seed: self.seed,
            passed: all_passed && processes::interrupted().is_none(),
            cuda_version: driver.version.unwrap_or(0),
            driver: driver_release(),
            devices,
            against: None,
        })
    }

    /// A device that the run uses, without turns.
    fn device(&self, device: &DriverDevice) -> Result<Device, Failure> {
        let failed = |what: String| Failure::failed(format!("device {}: {what}", device.ordinal));
        if let Some((function, code)) = &device.context_error {
            return Err(failed(format!("{function} answered {} ({code})", result_name(*code))));
        }
        let free = device
            .free_memory
            .ok_or_else(|| failed("cuMemGetInfo does not answer".to_owned()))?;
        let most = self.sim.map_or(u64::MAX, |_| MOST_SIMULATED);
        // A power of two, so that a device with a little more or less free memory plays the same again.
        let memory_bytes = 1 << (free / 4).clamp(1, most).ilog2();
        if memory_bytes < LEAST_MEMORY {
            return Err(failed(format!("only {} are free", format::size(free))));
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

    fn turn(&self, device: &Device, asked: &DriverDevice, strategy: Strategy, environment: &Environment) -> Outcome {
        let (name, memory, seed, uuid) = (strategy.name(), device.memory_bytes, self.seed, &device.uuid);
        let folder = format!("vramshim-stress-{seed}/device{}-{name}", device.ordinal);
        let folder = std::path::absolute(&folder).unwrap_or(folder.into());
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORKER);
        // What the user has set for jobs would stand between the worker and the driver's figures.
        for variable in table::VARIABLES {
            command.env_remove(variable.name);
        }
        environment.apply(&mut command, &environment.preloads());
        command
            .env(table::STRATEGY.name, name)
            .env(table::DIRECTORY.name, &folder)
            // What follows is not needed to look into a fault.
            .env(table::JOURNAL_MAX.name, "1GiB")
            .env(table::LOG.name, "warn");
        if strategy.reserves_up_front() {
            // It would reserve nearly the whole device.
            let part_mib = ((memory / 4) >> 20).max(8).to_string();
            command.envs(strategy.sizes().iter().map(|&(name, _)| (name, &part_mib)));
        }
        let kinds = Kind::ALL.into_iter().zip([true, asked.pools, asked.vmm]);
        let order = Order {
            device: device.ordinal,
            uuid: uuid.clone(),
            strategy: name.to_owned(),
            passes_through: strategy == Strategy::Passthrough,
            kinds: kinds.filter_map(|(kind, is_there)| is_there.then_some(kind)).collect(),
            granule: asked.granularity.unwrap_or(PAGE),
            seed,
            time_ms: self.time.as_millis() as u64 / self.strategy.len() as u64,
            memory,
            bound: BOUND.min(memory / 32),
            patience: self.timeout,
        };
        let mut again = format!("CUDA_VISIBLE_DEVICES={uuid} vramshim stress --strategy {name} --seed {seed}");
        if let Some(simulated) = self.sim {
            again += &format!(" --sim {simulated}");
        }
        stress::play(&mut command, &order, &folder, again)
    }
}
