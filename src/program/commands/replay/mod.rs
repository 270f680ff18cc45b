//! `vramshim replay`: plays recorded requests through strategies and shows what each would have reserved.

mod advice;
mod progress;
mod row;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use base::units::parse_size;
use comfy_table::{CellAlignment, Table, presets};
use config::Config;
use policy::{Settings, Strategy};
use serde_json::json;

use crate::failure::Failure;
use crate::render::format;
use crate::replay::{self, Source, Trace, play, smallest_device};
use advice::Recommendation;
use progress::Progress;
use row::Row;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Replay {
    /// The requests to play: a journal (.vraj), RMM's CSV log (.csv, .csv.gz: Thread,Time,Action,Pointer,Size,Stream),
    /// or a memory snapshot of PyTorch (.pickle)
    trace: PathBuf,

    #[arg(long, default_value = "all", value_name = "NAMES", value_delimiter = ',', help = strategies())]
    strategy: Vec<String>,

    /// Memory of the simulated device, such as 24GiB
    #[arg(long, default_value = "80GiB", value_name = "SIZE")]
    device_memory: String,

    /// Device number whose requests are played, if a journal or snapshot has several [default: the device that was used
    /// most]
    #[arg(long, value_name = "NUMBER")]
    device: Option<i16>,

    /// auto_growth maps memory in multiples of this, rounded up to a power of two, at most 1/16 of the device's memory;
    /// smallest chunk of paddle_auto_growth [default: the setting of the journal's job, else 0]
    #[arg(long, value_name = "SIZE")]
    chunk: Option<String>,

    /// First reservation of naive_best_fit and paddle_naive_best_fit; 0 takes a share of the device [default: the
    /// setting of the journal's job, else 0]
    #[arg(long, value_name = "SIZE")]
    initial: Option<String>,

    /// Later reservations of naive_best_fit and paddle_naive_best_fit; 0 takes a share of the free memory [default: the
    /// setting of the journal's job, else 0]
    #[arg(long, value_name = "SIZE")]
    reallocate: Option<String>,

    /// Print JSON, sizes in bytes
    #[arg(long)]
    json: bool,
}

fn strategies() -> String {
    format!("Strategies to play, comma-separated: all, or of {}", known_names())
}

fn known_names() -> String {
    replay::strategies().collect::<Vec<_>>().join(", ")
}

const EXAMPLES: &str = "\
Examples:
  vramshim replay vramshim-train/node1-4711-98765.vraj
  vramshim replay memory.csv.gz --device-memory 24GiB --strategy torch,auto_growth --json

torch and torch_expandable are models of PyTorch's caching allocator, paddle_auto_growth and paddle_naive_best_fit of \
Paddle's own allocators. passthrough gives each request to the driver unchanged, so no strategy can reserve less. \
If a trace names streams (logs, snapshots, journals of vramshim_torch_alloc), the requests are played on these streams.

utilisation is peak live / peak reserved. waits counts the waits for all work of the device before out of memory \
is reported. The smallest device is the smallest on which the strategy, giving idle memory back, still serves every \
request (to 1 MiB or 0.1%). The recommendation compares the strategies that can be set with what the job most likely runs \
now: the journal's strategy, or PyTorch's allocator for logs and snapshots.

Exit codes: 0 done, 1 the trace cannot be read, 2 an option cannot be used.";

/// The settings that a journal's job ran with; the default settings for other traces.
fn settings_of(source: &Source) -> Settings {
    let Source::Journal { environment, .. } = source else {
        return Settings::default();
    };
    let lookup = |name: &str| {
        let found = environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| OsString::from(value))
    };
    // Errors are ignored: if a value cannot be used, the job also ran with the default.
    Config::read(lookup).0.settings
}

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
        if device_memory == 0 {
            return Err(Failure::refused(
                "--device-memory 0 holds nothing; give a size, such as 24GiB",
            ));
        }
        let given = |name: &str, text: &Option<String>| text.as_deref().map(|text| size(name, text)).transpose();
        let chunk = given("--chunk", &self.chunk)?;
        let initial = given("--initial", &self.initial)?;
        let reallocate = given("--reallocate", &self.reallocate)?;
        let names = self.names()?;
        let reading = progress::reading(&self.trace);
        let trace = Trace::load(&self.trace, self.device).map_err(Failure::failed)?;
        drop(reading);
        let mut settings = settings_of(&trace.source);
        settings.chunk_bytes = chunk.unwrap_or(settings.chunk_bytes);
        settings.initial_bytes = initial.unwrap_or(settings.initial_bytes);
        settings.reallocate_bytes = reallocate.unwrap_or(settings.reallocate_bytes);
        let progress = Progress::new(trace.requests.len() as u64, names.len() as u64);
        let one = |name: &str| {
            progress.begin(name);
            let tick = |requests| progress.tick(requests);
            let outcome = play(&trace, name, &settings, device_memory, &tick)?;
            let smallest = smallest_device(&trace, &outcome, &settings, device_memory, &tick);
            Some(Row { outcome, smallest })
        };
        let rows: Vec<Row> = names.iter().filter_map(|name| one(name)).collect();
        let recommendation = advice::recommendation(&trace, &rows, &settings, device_memory, &one);
        progress.finish();
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self.json {
            true => self.print_json(&mut out, &trace, device_memory, &rows, &recommendation),
            false => self.print_table(&mut out, &trace, device_memory, &rows, &recommendation),
        }
        .and_then(|()| out.flush())
        .map_err(Failure::unwritten)
    }

    /// The strategies that `--strategy` names, each once.
    fn names(&self) -> Result<Vec<&'static str>, Failure> {
        let mut names = Vec::new();
        for name in self.strategy.iter().map(|name| name.trim()) {
            // A strategy of the library may be spelt in every way that the library accepts.
            let wanted = Strategy::parse(name).map_or(name, |strategy| strategy.name());
            let mut chosen = replay::strategies()
                .filter(|known| name == "all" || *known == wanted)
                .peekable();
            if chosen.peek().is_none() {
                return Err(Failure::refused(format!(
                    "--strategy {name:?} is unknown; known: all, {}",
                    known_names()
                )));
            }
            for name in chosen {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn print_json(
        &self,
        out: &mut impl Write,
        trace: &Trace,
        device_memory: u64,
        rows: &[Row],
        recommendation: &Recommendation,
    ) -> io::Result<()> {
        let strategies: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.outcome.name,
                    "peak_reserved": row.outcome.peak_reserved,
                    "utilisation": row.utilisation(trace),
                    "driver_calls": row.outcome.driver_calls,
                    "synchronisations": row.outcome.synchronisations,
                    "smallest_device": row.smallest,
                    "fits": row.outcome.failed == 0,
                    "failed": row.outcome.failed,
                })
            })
            .collect();
        writeln!(
            out,
            "{:#}",
            json!({
                "trace": self.trace.display().to_string(),
                "peak_live": trace.peak_live,
                "requests": trace.requests.len(),
                "unmatched": trace.unmatched,
                "notes": trace.notes,
                "device_memory": device_memory,
                "strategies": strategies,
                "recommendation": {
                    "strategy": recommendation.strategy,
                    "setting": recommendation.setting,
                    "saves": recommendation.saves,
                    "compared_with": recommendation.compared_with,
                    "why": recommendation.why,
                },
            })
        )
    }

    fn print_table(
        &self,
        out: &mut impl Write,
        trace: &Trace,
        device_memory: u64,
        rows: &[Row],
        recommendation: &Recommendation,
    ) -> io::Result<()> {
        writeln!(
            out,
            "{}: {}, peak live {}, on a device of {}",
            self.trace.display(),
            match trace.requests.len() {
                1 => "1 request".to_owned(),
                several => format!("{} requests and frees", format::count(several as u64)),
            },
            format::size(trace.peak_live),
            format::size(device_memory)
        )?;
        if trace.unmatched > 0 {
            writeln!(
                out,
                "{} do not match the rest (an address allocated twice, or freed without an allocation): the figures may be wrong",
                format::count(trace.unmatched)
            )?;
        }
        for note in &trace.notes {
            writeln!(out, "{note}")?;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "strategy",
            "peak reserved",
            "utilisation",
            "driver calls",
            "waits",
            "smallest device",
            "fits",
        ]);
        for row in rows {
            let fits = match row.outcome.failed {
                0 => "yes".to_owned(),
                1 => "no: 1 request failed".to_owned(),
                failed => format!("no: {} requests failed", format::count(failed)),
            };
            table.add_row([
                row.outcome.name.to_owned(),
                format::size(row.outcome.peak_reserved),
                row.utilisation(trace)
                    .map_or("-".to_owned(), |utilisation| format!("{utilisation:.3}")),
                format::count(row.outcome.driver_calls),
                row.outcome.synchronisations.map_or("-".to_owned(), format::count),
                row.smallest.map_or("-".to_owned(), format::size),
                fits,
            ]);
        }
        for column in table.column_iter_mut().skip(1).take(5) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for line in table.lines() {
            writeln!(out, "{}", line.trim_end())?;
        }
        writeln!(out, "Recommendation: {}", recommendation.why)
    }
}
