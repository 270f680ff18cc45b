//! `vramshim replay`: plays recorded requests through strategies and shows what each would have reserved.

mod json;
mod table;

use std::fmt::Display;
use std::path::PathBuf;

use base::text::shown;
use clap::Args;
use policy::Strategy;
use prices::Prices;

use crate::failure::Failure;
use crate::import::plain_file;
use crate::journals::{named, only};
use crate::number::{at_least, number, size, time_ns};
use crate::render::{format, progress};
use crate::replay::{self, Outcome, Setup, Trace, play, smallest_device};

/// The result of a strategy, and the smallest device on which the strategy serves all requests.
struct Row {
    outcome: Outcome,
    smallest: Option<u64>,
}

struct Played<'a> {
    name: String,
    /// Where the prices of driver calls are from.
    price_table: String,
    trace: &'a Trace,
    setup: &'a Setup,
    rows: &'a [Row],
    /// The strategies of which nothing is known, and why.
    not_known: &'a [(&'static str, &'static str)],
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Replay {
    /// The requests to play: a journal (.vraj) or a folder with one, RMM's CSV log (.csv, .csv.gz:
    /// Thread,Time,Action,Pointer,Size,Stream), or a memory snapshot of PyTorch (.pickle) [default: the newest journal]
    trace: Option<PathBuf>,

    #[arg(long, default_value = "all", value_name = "NAMES", value_delimiter = ',', help = strategies())]
    strategy: Vec<String>,

    /// Memory of the model device, such as 24GiB [default: the memory of the journal's device, or the job's limit if
    /// that is less; else 80GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    device_memory: Option<u64>,

    /// Device number whose requests are played, if a journal or snapshot has several [default: the device that was used
    /// most]
    #[arg(long, value_name = "NUMBER", value_parser = at_least(0i16, i16::MAX))]
    device: Option<i16>,

    /// auto_growth maps memory in multiples of this, rounded up to a power of two, at most 1/16 of the device's memory;
    /// smallest chunk of paddle_auto_growth [default: the setting of the journal's job, else 0]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk: Option<u64>,

    /// Prices of driver calls, such as measured on a GPU (scripts/prices.awk) [default: built-in prices]
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// How often the trace is played. Between two repetitions all memory is freed
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = number(1, MOST_REPETITIONS))]
    repeat: u64,

    /// How far the host runs ahead of the GPU, such as 500us, 20ms or 1s (units: ns, us, ms, s, min, h). A wait takes so long, and other streams get
    /// what was freed so much later [default: 0, the GPU is never behind]
    #[arg(long, default_value = "0", hide_default_value = true, value_name = "TIME", value_parser = time_ns)]
    lag: u64,

    /// Print JSON, sizes in bytes and times in nanoseconds
    #[arg(long)]
    json: bool,
}

fn strategies() -> String {
    format!("Strategies to play, comma-separated: all, or of {}", known_names())
}

fn known_names() -> String {
    replay::strategies().collect::<Vec<_>>().join(", ")
}

/// The memory of the device if neither an option nor the trace says it.
const ASSUMED_MEMORY: u64 = 80 << 30;

/// More repetitions show nothing new.
const MOST_REPETITIONS: u64 = 10_000;

const EXAMPLES: &str = "\
Examples:
  vramshim replay                                  # the newest journal here
  vramshim replay vramshim-train/node1-4711-98765.vraj
  vramshim replay memory.csv.gz --device-memory 24GiB --strategy torch,auto_growth --json
  vramshim replay memory.pickle --repeat 6 --lag 2ms

torch and torch_expandable are models of PyTorch's caching allocator, paddle_auto_growth and paddle_naive_best_fit of \
Paddle's own allocators. passthrough gives each request to the driver unchanged, so no strategy can reserve less. \
Requests for tensors are played each on its stream, and no free waits. Others are cuMemAlloc and cuMemFree, whose frees wait. \
If the job asked in vain at the end, the figures are at least what a strategy needs.

utilisation is peak live / peak reserved. driver time is the price of all calls, from a table of measured prices \
(--prices). A wait is for all work of the GPU, inside an allocation or inside a free; waiting is the time of all \
waits, which is 0 without --lag. of trace is driver time and waiting as a share of the time that the trace took.

With --repeat the JSON has each repetition: a job that repeats itself should call the driver no more. The frees between \
two repetitions belong to the second one.

The smallest device is the smallest on which the strategy, giving idle memory back, still serves every request (to \
1 MiB or 0.1%). The driver's context comes on top.

Exit codes: 0 done, 1 the trace cannot be read, 2 an option or a table of prices cannot be used.";

impl Replay {
    pub fn play(self) -> Result<(), Failure> {
        let prices = self.prices()?;
        let names = self.names()?;
        let path = only(&named(self.trace.as_slice(), true)?[0])?;
        let reading = progress::reading_files([&path], &shown(&path));
        let mut trace = Trace::load(&path, self.device).map_err(|why| match why.of_device {
            true => Failure::refused(why.problem),
            false => Failure::failed(why.problem),
        })?;
        drop(reading);
        let mut settings = trace.settings();
        settings.chunk_bytes = self.chunk.unwrap_or(settings.chunk_bytes);
        let device_memory = self.device_memory.or(trace.device_memory).unwrap_or_else(|| {
            trace.notes.push(format!(
                "the trace does not say how large the device is: it is taken as {}; --device-memory sets it",
                format::size(ASSUMED_MEMORY)
            ));
            ASSUMED_MEMORY
        });
        if let Some(bytes) = self.chunk.filter(|&bytes| bytes > device_memory) {
            return Err(Failure::refused(format!(
                "--chunk {} is more than the memory of the device, {}; give less, or a larger --device-memory",
                format::size(bytes),
                format::size(device_memory)
            )));
        }
        let setup = Setup {
            settings,
            device_memory,
            prices,
            lag_ns: self.lag,
            repetitions: self.repeat,
        };
        let playing = progress::spinner(String::new());
        let one = |name: &str| {
            playing.set_message(format!("playing {name}"));
            let outcome = play(&trace, name, &setup)?;
            let smallest = smallest_device(&trace, &outcome, &setup);
            Some(Row { outcome, smallest })
        };
        let rows: Vec<Row> = names.iter().filter_map(|name| one(name)).collect();
        let not_known = |&name: &&'static str| Some((name, trace.not_known(name)?));
        let not_known: Vec<_> = names.iter().filter_map(not_known).collect();
        playing.finish_and_clear();
        let played = Played {
            name: shown(&path),
            price_table: self.prices.as_deref().map_or_else(|| "built in".to_owned(), shown),
            trace: &trace,
            setup: &setup,
            rows: &rows,
            not_known: &not_known,
        };
        super::print(self.json.then(|| json::json_of(&played)), |page| {
            table::show(page, &played)
        })
    }

    fn prices(&self) -> Result<Prices, Failure> {
        let Some(path) = &self.prices else {
            return Ok(Prices::default());
        };
        let fail = |problem: &dyn Display| Failure::refused(format!("--prices {}: {problem}", shown(path)));
        let text = plain_file::read(path).map_err(|problem| fail(&problem))?;
        let text = String::from_utf8(text).map_err(|_| fail(&"is no text in UTF-8"))?;
        Prices::parse(&text).map_err(|problem| fail(&problem))
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
}
