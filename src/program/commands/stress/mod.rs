//! `vramshim stress`: makes the driver work under each strategy, and says whether ledger, driver and NVML agreed all the
//! while.

mod page;
mod plan;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::text::shown;
use clap::Args;
use config::parse_duration;
use indicatif::ProgressBar;
use policy::Strategy;

use self::plan::{Device, Plan};
use crate::escaped;
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::launch::processes;
use crate::number::{at_least, number};
use crate::output::Output;
use crate::render::format::{self, count};
use crate::render::progress;
use crate::stress::against::Comparison;
use crate::stress::baseline::{self, Baseline, Told};
use crate::stress::{Outcome, Turn, Watched, work};

/// The hidden subcommand that a worker runs.
pub const WORKER: &str = "stress-worker";

// Each paragraph is one line, because clap wraps lines to the width of the terminal.
const EXAMPLES: &str = "\
Examples:
  vramshim stress                                   # ten minutes, all devices, all strategies
  vramshim stress --quick -o baseline.json          # 15 seconds; keeps the outcome
  vramshim stress --against baseline.json           # after a driver update: what changed
  vramshim stress --against baseline.json --slower 2    # also fails if a call costs more than twice as much
  vramshim stress --strategy auto_growth --device 0 --seed 4711    # the same work again
  vramshim stress --sim 24GiB --quick               # no GPU needed

Jobs of others may use the devices meanwhile: a worker holds at most a quarter of what is free, and NVML tells what others \
take. The strategies follow one another, and the devices work at the same time.

Exit codes: 0 nothing broke; 1 something broke, a price rose by more than --slower, or the driver does not answer; 2 wrong usage, or \
a baseline that cannot be used. After Ctrl-C the command says what was seen until then, and ends by the signal.";

/// How long each strategy is used with `--quick`.
const QUICK: Duration = Duration::from_secs(5);
const LEAST_TIME: Duration = Duration::from_millis(100);
/// How often the progress bar is drawn anew.
const DRAW_EVERY: Duration = Duration::from_millis(100);

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Stress {
    /// How long to work on each device, such as 30s, 10m or 2h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = time)]
    moment: Duration,

    /// Work for 5 seconds with each strategy
    #[arg(long, conflicts_with = "moment")]
    quick: bool,

    /// The strategies, separated by commas, or all
    #[arg(long, short, value_name = "NAMES", default_value = "all", value_parser = strategies)]
    strategy: Strategies,

    /// A device by its number or UUID; can be given several times [default: all devices]
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,

    /// The most memory of a device that a worker holds: a size, or a share of what is free, such as 50% [default: a quarter
    /// of what is free, also if others take memory meanwhile; at most 512MiB of a simulated GPU]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Threads of a worker that allocate at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number(1u64, 64))]
    threads: u64,

    /// The seed of sizes and orders; it is printed, and makes each thread ask for the same again [default: random]
    #[arg(long, value_name = "N", value_parser = at_least(0u64, u64::MAX))]
    seed: Option<u64>,

    /// Bytes by which figures of driver, NVML and ledger may differ, besides what the driver's pages add
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    bound: String,

    /// How long a call of the driver may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    timeout: Duration,

    /// Nobody else uses the devices: compare their figures also if NVML does not list processes
    #[arg(long)]
    alone: bool,

    /// Compare with the baseline of an earlier run
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,

    /// Fail if the median price of a call is more than X times that of the baseline
    #[arg(long, value_name = "X", requires = "against", value_parser = ratio)]
    slower: Option<f64>,

    /// The file for the baseline of this run; - is the standard output [default: baseline.json in the folder of --dir]
    #[arg(long, short, value_name = "FILE", conflicts_with = "json")]
    output: Option<PathBuf>,

    /// Replace the file of --output
    #[arg(long, requires = "output")]
    force: bool,

    /// Folder for the baseline, and for journals and output of workers that broke [default: ./vramshim-stress-SEED]
    #[arg(long, short, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Print JSON: the baseline, and the comparison with --against
    #[arg(long)]
    json: bool,

    /// Use a simulated GPU with this much memory, such as 24GiB; no real GPU is needed
    #[arg(long, value_name = "SIZE")]
    sim: Option<String>,

    /// Number of simulated GPUs, each with the memory of --sim
    #[arg(long, value_name = "N", default_value_t = 1, requires = "sim", value_parser = number(1u32, 32))]
    sim_devices: u32,

    /// Path of the library [default: $VRAMSHIM_LIBRARY, or libvramshim.so in this program's folder or in ../lib]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// A list that clap takes as one value.
#[derive(Clone, Debug)]
struct Strategies(Vec<Strategy>);

fn strategies(text: &str) -> Result<Strategies, String> {
    if text.trim() == "all" {
        return Ok(Strategies(Strategy::ALL.to_vec()));
    }
    let parse = |name: &str| {
        let accepted = || format!("{name:?} is no strategy; accepted: all, {}", Strategy::accepted());
        Strategy::parse(name.trim()).ok_or_else(accepted)
    };
    let mut list: Vec<Strategy> = Vec::new();
    for strategy in text.split(',').map(parse) {
        let strategy = strategy?;
        if !list.contains(&strategy) {
            list.push(strategy);
        }
    }
    Ok(Strategies(list))
}

fn time(text: &str) -> Result<Duration, String> {
    let given = parse_duration(text).filter(|given| *given >= LEAST_TIME);
    given.ok_or_else(|| "give a time with a unit, at least 100ms, such as 30s, 10m or 2h".to_owned())
}

fn ratio(text: &str) -> Result<f64, String> {
    let given: Option<f64> = text.parse().ok();
    let given = given.filter(|given| given.is_finite() && *given >= 1.0);
    given.ok_or_else(|| "give a number from 1 on, such as 2 or 1.5".to_owned())
}

impl Stress {
    pub fn work(self) -> Result<(), Failure> {
        let before = self.against.as_deref().map(Baseline::read).transpose();
        let before = before.map_err(|what| Failure::refused(format!("--against {what}")))?;
        if let Some(output) = &self.output {
            Inputs::of(self.against.as_deref()).keep(output)?;
        }
        // Before the long run, not after it.
        let output = self
            .output
            .as_ref()
            .map(|path| Output::create(path, self.force))
            .transpose();
        let output = output.map_err(Failure::refused)?;
        processes::take_charge();
        let plan = Plan::make(&self);
        if let Some(signal) = processes::interrupted() {
            processes::end_by(signal);
        }
        let plan = plan?;
        let run = self.run(&plan);
        let comparison = before
            .as_ref()
            .map(|before| Comparison::of(before, &run, self.slower, !self.device.is_empty()));
        let (kept, text_to_stderr) = match output {
            Some(output) => (self.keep(&run, output)?, self.output.as_deref() == Some("-".as_ref())),
            None if before.is_some() => (None, false),
            None => {
                let path = plan.folder.join("baseline.json");
                std::fs::create_dir_all(&plan.folder)
                    .map_err(|error| Failure::failed(format!("{}: {error}", shown(&plan.folder))))?;
                let output = Output::create(&path, true).map_err(Failure::failed)?;
                self.keep(&run, output)?;
                (Some(path), false)
            }
        };
        let kept = kept.as_deref();
        let page = page::Page {
            run: &run,
            against: comparison.as_ref(),
            kept,
        };
        match (self.json, text_to_stderr) {
            (true, _) => page.json(),
            (false, true) => page.text(&mut std::io::stderr().lock(), false),
            (false, false) => page.text(&mut std::io::stdout().lock(), format::styled()),
        }
        .map_err(Failure::unwritten)?;
        if let Some(signal) = processes::interrupted() {
            processes::end_by(signal);
        }
        match run.passed && !comparison.is_some_and(|comparison| comparison.fails()) {
            true => Ok(()),
            false => Err(Failure::answer(1)),
        }
    }

    /// Writes the baseline. Returns the path of the file, unless it is the standard output.
    fn keep(&self, run: &Baseline, mut output: Output) -> Result<Option<PathBuf>, Failure> {
        let told = |error: std::io::Error| Failure::failed(format!("the baseline cannot be written: {error}"));
        escaped::pretty(&mut output, run).map_err(told)?;
        output.finish().map_err(told)?;
        Ok(self.output.clone().filter(|path| path.as_os_str() != "-"))
    }

    /// Plays all turns: the devices at the same time, the strategies one after the other.
    fn run(&self, plan: &Plan) -> Baseline {
        let strategies = &self.strategy.0;
        let share = match self.quick {
            true => QUICK,
            false => self.moment / strategies.len().max(1) as u32,
        };
        let bar = progress::working(share * strategies.len() as u32);
        let watched: Vec<Mutex<Watched>> = plan.devices.iter().map(|_| Mutex::default()).collect();
        let rows: Vec<Vec<(Strategy, Outcome, Told)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = plan
                .devices
                .iter()
                .zip(&watched)
                .map(|(device, watched)| scope.spawn(|| self.play_all(plan, device, share, watched)))
                .collect();
            let begun = Instant::now();
            while threads.iter().any(|thread| !thread.is_finished()) {
                draw(&bar, begun, &watched);
                std::thread::sleep(DRAW_EVERY);
            }
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_default())
                .collect()
        });
        bar.finish_and_clear();
        self.baseline(plan, rows)
    }

    fn play_all(
        &self,
        plan: &Plan,
        device: &Device,
        share: Duration,
        watched: &Mutex<Watched>,
    ) -> Vec<(Strategy, Outcome, Told)> {
        let mut played = Vec::new();
        for &strategy in &self.strategy.0 {
            if processes::interrupted().is_some() {
                break;
            }
            let order = plan.order(self, device, strategy, share);
            let folder = plan
                .folder
                .join(format!("device{}-{}", device.ordinal, strategy.name()));
            let turn = Turn {
                command: plan.command(device, strategy, &folder),
                order: crate::stress::Order {
                    calls: folder.join("calls"),
                    ..order
                },
                uuid: device.uuid.clone(),
                folder: folder.clone(),
                bound: plan.bound,
                alone: self.alone,
                patience: self.timeout,
            };
            let outcome = turn.play(watched);
            let told = plan.told(self, device, strategy, &outcome, &folder);
            played.push((strategy, outcome, told));
        }
        played
    }

    fn baseline(&self, plan: &Plan, rows: Vec<Vec<(Strategy, Outcome, Told)>>) -> Baseline {
        let outcomes = || rows.iter().flatten().map(|(_, outcome, _)| outcome);
        let wanted = plan.devices.len() * self.strategy.0.len();
        let done = outcomes()
            .filter(|outcome| outcome.fault.is_none() && !outcome.was_interrupted)
            .count();
        let ready = outcomes()
            .map(|outcome| &outcome.ready)
            .find(|ready| ready.cuda_version != 0);
        let ready = ready.cloned().unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Baseline {
            version: Baseline::version(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            made: format::time(now.map_or(0, |now| now.as_nanos() as u64)),
            seed: plan.seed,
            for_ms: match self.quick {
                true => QUICK.as_millis() as u64 * self.strategy.0.len() as u64,
                false => self.moment.as_millis() as u64,
            },
            passed: done == wanted,
            interrupted: processes::interrupted().is_some(),
            cuda_version: ready.cuda_version,
            driver: ready.driver,
            devices: plan
                .devices
                .iter()
                .zip(rows)
                .map(|(device, row)| row_of(device, row))
                .collect(),
        }
    }
}

fn draw(bar: &ProgressBar, begun: Instant, watched: &[Mutex<Watched>]) {
    let (mut rounds, mut calls) = (0, 0);
    for watched in watched.iter().filter_map(|watched| watched.lock().ok()) {
        rounds = rounds.max(watched.round);
        calls += watched.counts.calls;
    }
    let most = bar.length().unwrap_or(0);
    bar.set_position((begun.elapsed().as_millis() as u64).min(most));
    bar.set_message(format!("round {}, {} calls", count(rounds), count(calls)));
}

fn row_of(device: &Device, row: Vec<(Strategy, Outcome, Told)>) -> baseline::Device {
    let first = row.iter().find(|(_, outcome, _)| outcome.free_at_idle.is_some());
    baseline::Device {
        ordinal: device.ordinal,
        uuid: device.uuid.clone(),
        name: device.name.clone(),
        total_bytes: device.total,
        free_at_idle_bytes: first.and_then(|(_, outcome, _)| outcome.free_at_idle),
        context_bytes: first.and_then(|(_, outcome, _)| outcome.context_bytes),
        memory_bytes: device.memory,
        turns: row.into_iter().map(turn_of).collect(),
    }
}

fn turn_of((strategy, outcome, told): (Strategy, Outcome, Told)) -> baseline::Turn {
    baseline::Turn {
        strategy: strategy.name().to_owned(),
        rounds: outcome.rounds,
        counts: outcome.counts,
        compared: outcome.compared,
        not_compared: outcome.not_compared,
        why_not_compared: outcome.reasons.into_iter().collect(),
        left_out: outcome.ready.left_out,
        fault: outcome.fault.map(|fault| Told { fault, ..told }),
        prices: outcome.prices,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_strategies_are_those_of_the_command_line() {
        assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(time("2min"), Ok(Duration::from_secs(120)));
        assert!(time("10").is_err() && time("0s").is_err() && time("m").is_err());
        assert_eq!(strategies("all").unwrap().0, Strategy::ALL);
        let two = strategies("auto_growth,passthrough,auto_growth").unwrap().0;
        assert_eq!(two, [Strategy::AutoGrowth, Strategy::Passthrough]);
        assert!(strategies("best").unwrap_err().contains("naive_best_fit"));
        assert!(ratio("0.5").is_err() && ratio("nan").is_err() && ratio("2") == Ok(2.0));
    }
}
