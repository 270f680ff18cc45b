//! Measures the cost of one pair: free a block, allocate another.
//!
//! The contenders take turns in short rounds, so that other work on the machine slows each of them by about the same
//! factor. On the simulated GPU all contenders hold their live blocks the whole time. On a real GPU each round starts a
//! new process. The ratio of two contenders is computed for each round; the median of these ratios is printed.

use comfy_table::Table;
use serde_json::{Value, json};

use crate::contender::{CONTENDERS, Contender, Device, Kind, Load, Places, Round, Running, Sample};
use crate::text::{self, Progress};

pub const THREADS: [u64; 2] = [1, 2];
/// `growth` is relative to the cost with this number of live blocks.
const BASE: u64 = 1000;

pub struct Plan {
    pub live: Vec<u64>,
    pub rounds: usize,
    pub round: Round,
}

/// One sample for each round, or the reason why a round failed.
type Rounds = Result<Vec<Sample>, String>;

/// Chooses one of the two times of a sample.
type Clock = fn(&Sample) -> f64;
const WALL: Clock = |sample| sample.wall;
const PROCESSOR: Clock = |sample| sample.processor;

/// If a thread had a processor for less than this share of the time, the machine was busy with other work.
const UNDISTURBED: f64 = 0.95;

pub struct Cost {
    device: Device,
    live: Vec<u64>,
    contenders: Vec<Contender>,
    /// The three indices are those of `live`, `contenders` and `THREADS`.
    measured: Vec<Vec<[Rounds; THREADS.len()]>>,
}

pub fn measure(plan: &Plan, device: Device, contenders: Vec<Contender>, places: &Places, progress: &Progress) -> Cost {
    let measured = plan
        .live
        .iter()
        .map(|&live| {
            let mut cells = Vec::new();
            for contender in &contenders {
                for threads in THREADS {
                    let round = plan.round;
                    cells.push((contender, Load { live, threads, round }));
                }
            }
            let mut results = match device {
                Device::Simulated => take_turns(&cells, device, plan, places, progress),
                Device::Gpu => one_by_one(&cells, device, plan, places, progress),
            }
            .into_iter();
            contenders
                .iter()
                .map(|_| THREADS.map(|_| results.next().unwrap_or_else(|| Err("not measured".to_owned()))))
                .collect()
        })
        .collect();
    Cost {
        device,
        live: plan.live.clone(),
        contenders,
        measured,
    }
}

/// The order of the measurements in a round. Each round begins one further, so that no measurement is always first.
fn rotated(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| (index + round) % count)
}

/// Keeps the processes of all measurements alive, but only one process works at a time.
fn take_turns(
    cells: &[(&Contender, Load)],
    device: Device,
    plan: &Plan,
    places: &Places,
    progress: &Progress,
) -> Vec<Rounds> {
    let mut running: Vec<Result<Running, String>> = cells
        .iter()
        .map(|(contender, load)| {
            progress.show(&format!(
                "{} live blocks: {} is getting them",
                text::count(load.live),
                contender.name
            ));
            Running::start(contender, places, device, load)
        })
        .collect();
    let mut rounds: Vec<Rounds> = cells.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..plan.rounds {
        progress.show(&format!(
            "{} live blocks: round {} of {}",
            text::count(cells.first().map_or(0, |(_, load)| load.live)),
            round + 1,
            plan.rounds
        ));
        for index in rotated(cells.len(), round) {
            let next = match &mut running[index] {
                Ok(process) => process.round(),
                Err(why) => Err(why.clone()),
            };
            add(&mut rounds[index], next);
        }
    }
    rounds
}

/// Starts a process for each round, because a real device cannot hold the live blocks of all contenders at once.
fn one_by_one(
    cells: &[(&Contender, Load)],
    device: Device,
    plan: &Plan,
    places: &Places,
    progress: &Progress,
) -> Vec<Rounds> {
    let mut rounds: Vec<Rounds> = cells.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..plan.rounds {
        for index in rotated(cells.len(), round) {
            let (contender, load) = &cells[index];
            progress.show(&format!(
                "GPU, {} live blocks: round {} of {}: {}",
                text::count(load.live),
                round + 1,
                plan.rounds,
                contender.name
            ));
            if rounds[index].is_ok() {
                let next = Running::start(contender, places, device, load).and_then(|mut process| process.round());
                add(&mut rounds[index], next);
            }
        }
    }
    rounds
}

fn add(rounds: &mut Rounds, next: Result<Sample, String>) {
    match (&mut *rounds, next) {
        (Ok(samples), Ok(sample)) => samples.push(sample),
        (Ok(_), Err(why)) => *rounds = Err(why),
        (Err(_), _) => {}
    }
}

pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => None,
        length if length % 2 == 1 => Some(numbers[middle]),
        _ => Some((numbers[middle - 1] + numbers[middle]) / 2.0),
    }
}

/// The median, over all rounds, of `above` / `below`.
fn ratio(above: &Rounds, below: &Rounds, clock: Clock) -> Option<f64> {
    let (Ok(above), Ok(below)) = (above, below) else {
        return None;
    };
    let both = above.iter().zip(below);
    median(both.map(|(above, below)| clock(above) / clock(below)).collect())
}

impl Cost {
    fn rounds(&self, live: usize, contender: usize, threads: usize) -> &Rounds {
        &self.measured[live][contender][threads]
    }

    fn pair(&self, live: usize, contender: usize, clock: Clock) -> Option<f64> {
        let rounds = self.rounds(live, contender, 0).as_ref().ok()?;
        median(rounds.iter().map(clock).collect())
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == name)
    }

    fn against(&self, name: &str, live: usize, contender: usize, clock: Clock) -> Option<f64> {
        let other = self.index_of(name)?;
        ratio(self.rounds(live, contender, 0), self.rounds(live, other, 0), clock)
    }

    /// The nanoseconds that passthrough adds to a call of the driver: half of what it adds to a pair. A policy makes no
    /// such call for most requests.
    fn added_to_bare(&self, live: usize, contender: usize, clock: Clock) -> Option<f64> {
        let forwards = self.contenders[contender].kind == Kind::Library("passthrough");
        let bare = self.index_of("bare").filter(|_| forwards)?;
        let (Ok(ours), Ok(bare)) = (self.rounds(live, contender, 0), self.rounds(live, bare, 0)) else {
            return None;
        };
        let both = ours.iter().zip(bare);
        median(both.map(|(ours, bare)| (clock(ours) - clock(bare)) / 2.0).collect())
    }

    fn growth(&self, live: usize, contender: usize, clock: Clock) -> Option<f64> {
        let base = self.live.iter().position(|&live| live == BASE)?;
        Some(self.pair(live, contender, clock)? / self.pair(base, contender, clock)?)
    }

    /// The throughput of two threads divided by the throughput of one thread.
    fn two_threads(&self, live: usize, contender: usize) -> Option<f64> {
        ratio(self.rounds(live, contender, 0), self.rounds(live, contender, 1), WALL)
    }

    /// The median share of its time for which the thread of a one-thread round had a processor.
    fn processor_share(&self) -> Option<f64> {
        let alone = self
            .measured
            .iter()
            .flatten()
            .filter_map(|[alone, _]| alone.as_ref().ok());
        median(alone.flatten().map(|sample| sample.processor / sample.wall).collect())
    }

    pub fn has(&self, name: &str) -> bool {
        self.contenders.iter().any(|contender| contender.name == name)
    }

    pub fn print(&self) {
        let device = match self.device {
            Device::Simulated => "on the simulated GPU, whose driver calls cost next to nothing",
            Device::Gpu => "on this machine's GPU",
        };
        println!("Cost of an allocate+free pair {device}");
        println!("512 B to 1 MiB, uniform; a random victim is freed and another size allocated in its place");
        self.tables("", WALL);
        self.table(
            "throughput of 2 threads relative to 1 (the live blocks are split between them)",
            times,
            Self::two_threads,
        );
        // The share comes from rounds with one thread. Two threads also give up the processor while they wait for each
        // other.
        if let Some(share) = self.processor_share().filter(|&share| share < UNDISTURBED) {
            println!(
                "\nOther work kept this machine busy: a thread had a processor for {:.0} % of its time. The times above\n\
                 include the rest, and the numbers for 2 threads say little. The tables below count processor time only:",
                share * 100.0
            );
            self.tables(" of processor time", PROCESSOR);
        }
        for line in self.refusals() {
            println!("  {line}");
        }
    }

    fn tables(&self, of: &str, clock: Clock) {
        let nanoseconds = |value: f64| text::count(value.round() as u64);
        self.table(
            &format!("nanoseconds{of} a pair, 1 thread"),
            nanoseconds,
            |cost, live, index| cost.pair(live, index, clock),
        );
        for other in ["torch", "mimalloc"].into_iter().filter(|other| self.has(other)) {
            self.table(
                &format!("the same relative to {other} (less is faster)"),
                times,
                |cost, live, index| cost.against(other, live, index, clock),
            );
        }
        self.table(
            &format!("nanoseconds{of} that passthrough adds to a call of the driver (cuMemAlloc, cuMemFree)"),
            |value| format!("{value:.0}"),
            |cost, live, index| cost.added_to_bare(live, index, clock),
        );
        self.table("the same relative to 1,000 live blocks", times, |cost, live, index| {
            cost.growth(live, index, clock)
        });
    }

    fn table(&self, title: &str, word: impl Fn(f64) -> String, value: impl Fn(&Self, usize, usize) -> Option<f64>) {
        println!("\n{title}");
        let mut table = Table::new();
        let heads = self.live.iter().map(|&live| format!("{} live", text::count(live)));
        text::prepare(&mut table, ["".to_owned()].into_iter().chain(heads));
        for (index, contender) in self.contenders.iter().enumerate() {
            let cells = (0..self.live.len()).map(|live| value(self, live, index).map_or("-".to_owned(), &word));
            table.add_row([contender.name.to_owned()].into_iter().chain(cells));
        }
        text::align(&mut table, 1);
        println!("{table}");
    }

    /// The reasons for missing numbers, one line for each contender and reason.
    fn refusals(&self) -> Vec<String> {
        let mut reasons: Vec<(&str, &str, Vec<String>)> = Vec::new();
        for (index, contender) in self.contenders.iter().enumerate() {
            for (live, &blocks) in self.live.iter().enumerate() {
                for (place, threads) in THREADS.iter().enumerate() {
                    let Err(why) = self.rounds(live, index, place) else {
                        continue;
                    };
                    let cell = match threads {
                        1 => text::count(blocks),
                        _ => format!("{} on {threads} threads", text::count(blocks)),
                    };
                    let known = reasons
                        .iter_mut()
                        .find(|(name, reason, _)| *name == contender.name && reason == why);
                    match known {
                        Some((_, _, cells)) => cells.push(cell),
                        None => reasons.push((contender.name, why, vec![cell])),
                    }
                }
            }
        }
        reasons
            .into_iter()
            .map(|(name, why, cells)| format!("no number for {name}: {why} (live blocks: {})", cells.join("; ")))
            .collect()
    }

    pub fn json(&self) -> Value {
        let mut results = Vec::new();
        for (live, &blocks) in self.live.iter().enumerate() {
            for (index, contender) in self.contenders.iter().enumerate() {
                let threads: Vec<Value> = THREADS
                    .iter()
                    .enumerate()
                    .map(|(place, threads)| match self.rounds(live, index, place) {
                        Ok(rounds) => json!({
                            "threads": threads,
                            "ns_per_pair": median(rounds.iter().map(WALL).collect()),
                            "processor_ns_per_pair": median(rounds.iter().map(PROCESSOR).collect()),
                            "least": rounds.iter().map(WALL).reduce(f64::min),
                            "most": rounds.iter().map(WALL).reduce(f64::max),
                        }),
                        Err(why) => json!({ "threads": threads, "ns_per_pair": null, "why": why }),
                    })
                    .collect();
                results.push(json!({
                    "contender": contender.name,
                    "live": blocks,
                    "ns_per_pair": self.pair(live, index, WALL),
                    "versus_torch": self.against("torch", live, index, WALL),
                    "versus_mimalloc": self.against("mimalloc", live, index, WALL),
                    "added_to_bare_ns_per_call": self.added_to_bare(live, index, WALL),
                    "versus_1000_live": self.growth(live, index, WALL),
                    "processor_versus_torch": self.against("torch", live, index, PROCESSOR),
                    "processor_versus_1000_live": self.growth(live, index, PROCESSOR),
                    "two_threads_throughput": self.two_threads(live, index),
                    "measured": threads,
                }));
            }
        }
        json!({
            "device": self.device.key(),
            "processor_share": self.processor_share(),
            "results": results,
        })
    }

    /// Whether every measurement of the library's own strategies succeeded.
    pub fn complete(&self) -> bool {
        self.measured.iter().all(|cells| {
            cells
                .iter()
                .flatten()
                .zip(0..)
                .all(|(rounds, place)| rounds.is_ok() || !self.contenders[place / THREADS.len()].is_ours())
        })
    }
}

fn times(value: f64) -> String {
    format!("{}x", text::significant(value))
}

/// The contenders with these names or, if no names are given, those that belong to the device.
pub fn chosen(names: &[String], device: Device) -> Vec<Contender> {
    CONTENDERS
        .into_iter()
        .filter(|contender| match names {
            [] => contender.belongs(device),
            names => names.iter().any(|name| name == contender.name),
        })
        .collect()
}
