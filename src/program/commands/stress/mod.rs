//! `vramshim stress`: makes the driver work under each strategy, and says whether ledger, driver and NVML agreed all the
//! while.

mod page;
mod plan;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::text::shown;
use clap::Args;
use policy::Strategy;

use self::plan::Plan;
use crate::failure::Failure;
use crate::launch::processes;
use crate::launch::simulator::Simulated;
use crate::render::{format, progress};
use crate::stress::baseline::{Baseline, Comparison, Device, VERSION};
use crate::stress::work;

/// The hidden subcommand that a worker runs.
pub const WORKER: &str = "stress-worker";

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXAMPLES: &str = "\
Examples:
  vramshim stress                                   # ten minutes, all devices, all strategies
  vramshim stress --quick --json > baseline.json    # 15 seconds; keeps the outcome
  vramshim stress --against baseline.json           # after a driver update: what changed, and got slower
  CUDA_VISIBLE_DEVICES=0 vramshim stress --strategy auto_growth --seed 4711    # the same work again, on one device

Exit codes: 0 nothing broke; 1 something broke, or the driver does not answer; 2 wrong usage, or a baseline that cannot be \
used.";

/// How long each strategy is used with `--quick`.
const QUICK: Duration = Duration::from_secs(5);
/// How often the progress bar is drawn anew.
const DRAW_EVERY: Duration = Duration::from_millis(100);

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
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

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
        processes::take_charge();
        let mut run = Plan::new(&self).and_then(|plan| self.run(&plan));
        if let Ok(run) = &mut run {
            run.against = before.map(|before| Comparison::new(&before, run));
            if self.json {
                page::json(run)
            } else {
                page::text(run, &mut std::io::stdout().lock(), format::styled())
            }
            .map_err(Failure::unwritten)?;
        }
        if let Some(signal) = processes::interrupted() {
            processes::end_by(signal);
        }
        if run?.passed { Ok(()) } else { Err(Failure::answer(1)) }
    }

    /// How long each strategy is used.
    fn share(&self) -> Duration {
        if self.quick {
            QUICK
        } else {
            self.time / self.strategy.len() as u32
        }
    }

    /// Plays all turns: the devices at the same time, the strategies one after the other.
    fn run(&self, plan: &Plan) -> Result<Baseline, Failure> {
        let devices = plan.driver.devices.iter().map(|device| plan.device(device, self));
        let mut devices = devices.collect::<Result<Vec<Device>, Failure>>()?;
        let time = self.share() * self.strategy.len() as u32;
        let (bar, begun) = (progress::working(time), Instant::now());
        std::thread::scope(|scope| {
            let play = |device: &mut Device| {
                for strategy in self.strategy.iter().take_while(|_| processes::interrupted().is_none()) {
                    device.turns.push(plan.turn(self, device, *strategy).play());
                }
            };
            let threads: Vec<_> = devices
                .iter_mut()
                .map(|device| scope.spawn(move || play(device)))
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                bar.set_position(begun.elapsed().min(time).as_millis() as u64);
                std::thread::sleep(DRAW_EVERY);
            }
        });
        bar.finish_and_clear();
        let mut turns = devices.iter().flat_map(|device| &device.turns);
        let all_passed = turns.all(|turn| turn.is_done && turn.fault.is_none());
        let interrupted = processes::interrupted().is_some();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Baseline {
            vramshim_baseline: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            made: format::time(now.map_or(0, |now| now.as_nanos() as u64)),
            seed: plan.seed,
            for_ms: time.as_millis() as u64,
            passed: all_passed && !interrupted,
            interrupted,
            cuda_version: plan.driver.version.unwrap_or(0),
            driver: plan.driver.release.clone(),
            devices,
            against: None,
        })
    }
}

/// The hidden subcommand of a worker.
#[derive(Args)]
pub struct Worker {
    order: String,
}

impl Worker {
    pub fn start(self) -> Result<(), Failure> {
        work(&self.order)
    }
}
