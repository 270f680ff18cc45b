//! `vramshim replay`: what other strategies would have reserved for the same requests.

use std::path::PathBuf;

use clap::Args;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use vramshim::config::parse_size;
use vramshim::policy::Settings;

use super::{Failure, words};
use crate::replay::{Outcome, STRATEGIES, Trace, play, smallest_device};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Replay {
    /// A journal (.vraj), RMM's CSV log (.csv, .csv.gz: Thread,Time,Action,Pointer,Size,Stream), or a memory snapshot of
    /// PyTorch (.pickle)
    trace: PathBuf,

    /// Strategies to play, comma-separated: all, or of passthrough, naive_best_fit, auto_growth, torch,
    /// torch_expandable
    #[arg(long, default_value = "all", value_name = "NAMES", value_delimiter = ',')]
    strategy: Vec<String>,

    /// Memory of the device to play on
    #[arg(long, default_value = "80GiB", value_name = "SIZE")]
    device_memory: String,

    /// Least chunk of auto_growth
    #[arg(long, default_value = "0", value_name = "SIZE")]
    chunk: String,

    /// Print JSON, sizes in bytes
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  vramshim replay vramshim-train/node1-4711-98765.vraj
  vramshim replay memory.csv.gz --device-memory 24GiB --strategy torch,auto_growth --json

torch and torch_expandable are models of PyTorch's caching allocator; passthrough gives each request to the driver as it
is, which is also the least that could be reserved. utilisation = peak live / peak reserved; the smallest device is the one
on which the strategy, giving back what is idle, still serves every request.";

impl Replay {
    pub fn play(self) -> Result<(), Failure> {
        let size = |name: &str, text: &str| {
            let problem = || {
                Failure::refused(format!(
                    "{name} {text:?} is no size; give bytes or a unit, such as 24GiB"
                ))
            };
            parse_size(text).ok_or_else(problem)
        };
        let device_memory = size("--device-memory", &self.device_memory)?;
        let settings = Settings {
            chunk_bytes: size("--chunk", &self.chunk)?,
            ..Settings::default()
        };
        let names: Vec<&str> = match self.strategy.iter().any(|name| name == "all") {
            true => STRATEGIES.to_vec(),
            false => self.strategy.iter().map(String::as_str).collect(),
        };
        let unknown = |name: &&&str| !STRATEGIES.contains(*name);
        if let Some(name) = names.iter().find(unknown) {
            return Err(Failure::refused(format!(
                "--strategy {name:?} is unknown; known: all, {}",
                STRATEGIES.join(", ")
            )));
        }
        let trace = Trace::load(&self.trace).map_err(Failure::failed)?;
        let outcomes: Vec<Outcome> = names
            .iter()
            .filter_map(|name| play(&trace, name, &settings, device_memory))
            .collect();
        let utilisation = |outcome: &Outcome| trace.peak_live as f64 / outcome.peak_reserved.max(1) as f64;
        let smallest = |outcome: &Outcome| smallest_device(&trace, outcome.name, &settings);
        if self.json {
            let strategies: Vec<_> = outcomes
                .iter()
                .map(|outcome| {
                    json!({
                        "name": outcome.name,
                        "peak_reserved": outcome.peak_reserved,
                        "utilisation": utilisation(outcome),
                        "driver_calls": outcome.driver_calls,
                        "smallest_device": smallest(outcome),
                        "fits": outcome.failed == 0,
                        "failed": outcome.failed,
                    })
                })
                .collect();
            println!(
                "{:#}",
                json!({
                    "trace": self.trace.display().to_string(),
                    "peak_live": trace.peak_live,
                    "requests": trace.requests.len(),
                    "unmatched": trace.unmatched,
                    "device_memory": device_memory,
                    "strategies": strategies,
                })
            );
            return Ok(());
        }
        println!(
            "{}: {} requests, peak live {}, on a device of {}",
            self.trace.display(),
            words::count(trace.requests.len() as u64),
            words::size(trace.peak_live),
            words::size(device_memory)
        );
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "strategy",
            "peak reserved",
            "utilisation",
            "driver calls",
            "smallest device",
            "fits",
        ]);
        for outcome in &outcomes {
            let fits = match outcome.failed {
                0 => "yes".to_owned(),
                failed => format!("no: {} requests failed", words::count(failed)),
            };
            table.add_row([
                outcome.name.to_owned(),
                words::size(outcome.peak_reserved),
                // where requests failed, the two peaks are of different runs
                if outcome.failed == 0 {
                    format!("{:.3}", utilisation(outcome))
                } else {
                    "-".to_owned()
                },
                words::count(outcome.driver_calls),
                smallest(outcome).map_or("-".to_owned(), words::size),
                fits,
            ]);
        }
        for column in table.column_iter_mut().skip(1).take(4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!("{table}");
        Ok(())
    }
}
