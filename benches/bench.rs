//! The benchmark program, which `scripts/bench` builds and starts. This program measures the cost of an allocate+free
//! pair, what else a process pays, and the memory that each strategy reserves. It prints tables or JSON.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};

mod contender;
mod cost;
mod footprint;
mod fragmentation;
mod growth;
mod played;
mod stacks;
mod text;

use contender::{CONTENDERS, Contender, Device, Places, Round};
use cost::{Cost, Plan};
use footprint::Footprint;
use fragmentation::Fragmentation;
use growth::Growth;
use played::Played;
use stacks::Stacks;
use text::Progress;

/// The options of this program. `scripts/bench --help` explains the options for users.
#[derive(Parser)]
#[command(name = "scripts/bench", disable_help_flag = true)]
struct Options {
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    full: bool,
    #[arg(long)]
    json: bool,
    #[arg(long, value_parser = ["cost", "footprint", "growth", "fragmentation", "played", "stacks"])]
    table: Option<String>,
    #[arg(long, value_delimiter = ',', value_parser = CONTENDERS.map(|contender| contender.name))]
    contenders: Vec<String>,
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    live: Vec<u64>,
    #[arg(long)]
    traces: Option<PathBuf>,
    /// Percent by which the table `played` changes sizes.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..100))]
    noise: u64,

    // The options below are set by the script, not by users.
    #[arg(long)]
    release: PathBuf,
    #[arg(long)]
    programs: PathBuf,
    #[arg(long)]
    simgpu: PathBuf,
    #[arg(long)]
    scratch: PathBuf,
    /// Also measure this machine's GPU.
    #[arg(long)]
    gpu: bool,
    /// Contenders that could not be built, each as NAME=REASON.
    #[arg(long)]
    without: Vec<String>,
    /// Pythons whose frames are measured.
    #[arg(long)]
    python: Vec<PathBuf>,
    /// The folder of generated traces.
    #[arg(long)]
    generated: Option<PathBuf>,
}

impl Options {
    fn plan(&self) -> Plan {
        let mut live = match (self.live.is_empty(), self.quick) {
            (false, _) => self.live.clone(),
            (true, true) => vec![1, 1000, 20_000],
            (true, false) => vec![1, 1000, 20_000, 100_000],
        };
        if self.full && self.live.is_empty() {
            live.push(1_000_000);
        }
        let (rounds, milliseconds, pairs) = if self.quick {
            (3, 20, 20_000)
        } else {
            (15, 100, 100_000)
        };
        Plan {
            live,
            rounds,
            round: Round { milliseconds, pairs },
        }
    }

    fn wants(&self, table: &str) -> bool {
        self.table.as_deref().is_none_or(|only| only == table)
    }

    fn places(&self) -> Places {
        Places {
            release: self.release.clone(),
            programs: self.programs.clone(),
            simgpu: self.simgpu.clone(),
            scratch: self.scratch.clone(),
        }
    }

    fn chosen(&self, left_out: &[(&str, &str)], device: Device) -> Vec<Contender> {
        Self::there(&self.contenders, left_out, device)
    }

    /// The contenders with these names, or those that belong to the device, but for those that are left out.
    fn there(names: &[String], left_out: &[(&str, &str)], device: Device) -> Vec<Contender> {
        let mut chosen = cost::chosen(names, device);
        chosen.retain(|contender| !left_out.iter().any(|(name, _)| *name == contender.name));
        chosen
    }

    /// The traces of the folder that was given, or those that were generated.
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let folder = self.traces.as_ref().or(self.generated.as_ref());
        fragmentation::traces(
            folder.ok_or("no traces were given and none can be generated: give a folder with --traces")?,
        )
    }

    /// The names of the contenders that are left out, each with the reason.
    fn left_out(&self) -> Vec<(&str, &str)> {
        self.without.iter().filter_map(|text| text.split_once('=')).collect()
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let progress = Progress::new();
    let left_out = options.left_out();
    let costs = if options.wants("cost") {
        costs(&options, &left_out, &progress)
    } else {
        Vec::new()
    };
    let footprint = options
        .wants("footprint")
        .then(|| footprint(&options, &left_out, &progress));
    let growth = options
        .wants("growth")
        .then(|| growth::measure(&options.places(), &progress));
    let fragmentation = options
        .wants("fragmentation")
        .then(|| fragmentation(&options, &progress));
    let timed = (options.table.as_deref() == Some("played")).then(|| played(&options, &left_out, &progress));
    let stacks = options.wants("stacks").then(|| stacks(&options, &progress));
    progress.clear();
    // The contenders have ended, so no write to them can raise SIGPIPE. From here on SIGPIPE ends this program if the
    // reader of stdout is gone.
    // SAFETY: this program has one thread here, and the default action of a signal needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };

    if options.json {
        let mut page = as_json(&options, &left_out, &costs, &footprint, &growth, &fragmentation);
        page["played"] = match &timed {
            Some(Ok(table)) => table.json(),
            Some(Err(why)) => json!(why),
            None => Value::Null,
        };
        page["stacks"] = json!(stacks.as_ref().map(Stacks::json));
        println!("{page:#}");
    } else {
        print(&options, &left_out, &costs, &footprint, &growth, &fragmentation);
        match &timed {
            Some(Ok(table)) => table.print(),
            Some(Err(why)) => println!("Played: {why}"),
            None => {}
        }
        if let Some(stacks) = &stacks {
            stacks.print();
        }
    }
    let complete = costs.iter().all(Cost::complete)
        && footprint.as_ref().is_none_or(Footprint::complete)
        && growth.as_ref().is_none_or(Growth::complete)
        && match &fragmentation {
            Some(Ok(fragmentation)) => fragmentation.complete(),
            Some(Err(_)) => options.traces.is_none(),
            None => true,
        };
    if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn costs(options: &Options, left_out: &[(&str, &str)], progress: &Progress) -> Vec<Cost> {
    let places = options.places();
    let plan = options.plan();
    let mut devices = vec![Device::Simulated];
    if options.gpu {
        devices.push(Device::Gpu);
    }
    devices
        .into_iter()
        .map(|device| {
            let contenders = options.chosen(left_out, device);
            cost::measure(&plan, device, contenders, &places, progress)
        })
        .collect()
}

fn footprint(options: &Options, left_out: &[(&str, &str)], progress: &Progress) -> Footprint {
    let contenders = options.chosen(left_out, Device::Simulated);
    footprint::measure(contenders, &options.places(), options.quick, options.full, progress)
}

/// The table of fragmentation, or the reason why there is none.
fn fragmentation(options: &Options, progress: &Progress) -> Result<Fragmentation, String> {
    let files = options.files()?;
    Ok(fragmentation::measure(
        &files,
        &options.release.join("vramshim"),
        progress,
    ))
}

fn stacks(options: &Options, progress: &Progress) -> Stacks {
    let places = stacks::Places {
        release: &options.release,
        programs: &options.programs,
        simgpu: &options.simgpu,
        scratch: &options.scratch,
        pythons: &options.python,
    };
    stacks::measure(if options.quick { 3 } else { 10 }, &places, progress)
}

fn played(options: &Options, left_out: &[(&str, &str)], progress: &Progress) -> Result<Played, String> {
    let names = if options.contenders.is_empty() {
        played::NAMES.map(str::to_owned).to_vec()
    } else {
        options.contenders.clone()
    };
    let device = if options.gpu { Device::Gpu } else { Device::Simulated };
    let choice = played::Choice {
        device,
        noise: options.noise,
        contenders: Options::there(&names, left_out, device),
    };
    played::measure(&options.files()?, &choice, &options.places(), progress)
}

fn print(
    options: &Options,
    left_out: &[(&str, &str)],
    costs: &[Cost],
    footprint: &Option<Footprint>,
    growth: &Option<Growth>,
    fragmentation: &Option<Result<Fragmentation, String>>,
) {
    if !costs.is_empty() {
        println!("{}", machine());
        let measured = |contender: &Contender| costs.iter().any(|cost| cost.has(contender.name));
        for contender in CONTENDERS.iter().filter(|contender| measured(contender)) {
            println!("  {:<24}{}", contender.name, contender.what);
        }
        for (name, why) in left_out {
            println!("left out: {name}: {why}");
        }
    }
    for cost in costs {
        println!();
        cost.print();
    }
    if let Some(footprint) = footprint {
        println!();
        footprint.print();
    }
    if let Some(growth) = growth {
        println!();
        growth.print();
    }
    match fragmentation {
        Some(Ok(table)) => {
            println!();
            if options.traces.is_none() {
                println!(
                    "No traces were given (--traces): these were generated; real_* come from PyTorch jobs (--torch)."
                );
            }
            table.print();
        }
        Some(Err(why)) => println!("\nFragmentation: {why}"),
        None => {}
    }
}

fn as_json(
    options: &Options,
    left_out: &[(&str, &str)],
    costs: &[Cost],
    footprint: &Option<Footprint>,
    growth: &Option<Growth>,
    fragmentation: &Option<Result<Fragmentation, String>>,
) -> Value {
    let left_out: Vec<Value> = left_out
        .iter()
        .map(|(name, why)| json!({ "contender": name, "why": why }))
        .collect();
    let fragmentation = match fragmentation {
        Some(Ok(table)) => {
            let mut page = table.json();
            page["generated"] = json!(options.traces.is_none());
            page
        }
        Some(Err(why)) => json!({ "why": why }),
        None => Value::Null,
    };
    json!({
        "machine": machine(),
        "quick": options.quick,
        "left_out": left_out,
        "cost": costs.iter().map(Cost::json).collect::<Vec<_>>(),
        "footprint": footprint.as_ref().map(Footprint::json),
        "growth": growth.as_ref().map(Growth::json),
        "fragmentation": fragmentation,
    })
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let described = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = described
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    format!("{model}, {cores} cores")
}

impl Contender {
    fn is_ours(&self) -> bool {
        self.strategy().is_some()
    }
}
