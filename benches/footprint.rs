//! What a process pays beside the time of a pair: its first call, host memory for live blocks, and bytes of the
//! journal. Each figure comes from processes of `grow.c` on the simulated GPU. The contenders take turns.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use comfy_table::Table;
use serde_json::{Value, json};

use crate::contender::{Contender, Device, Kind, Places};
use crate::cost::median;
use crate::text::{self, Progress};

/// Live blocks: some work, 10 times the work, and 100 times.
const LIVE: [u64; 3] = [1000, 10_000, 100_000];
/// The same if the whole table is wanted.
const LIVE_FULL: [u64; 3] = [10_000, 100_000, 1_000_000];
/// The memory of the simulated device. Its first reservation costs the simulated GPU time that grows with the memory.
const MEMORY: &str = "80GiB";
/// Memory that holds a million blocks.
const MEMORY_FULL: &str = "1TiB";
/// Each live block is replaced so often on average.
const TURNOVER: u64 = 2;

/// What one process of `grow.c` told.
struct Sample {
    first_ns: f64,
    bytes: f64,
    events: f64,
    journal_bytes: f64,
}

pub struct Footprint {
    live: [u64; 3],
    contenders: Vec<Contender>,
    /// For each contender: microseconds until the first block is there, for each process.
    first_us: Vec<Result<Vec<f64>, String>>,
    /// For each contender and each number of live blocks.
    grown: Vec<Vec<Result<Sample, String>>>,
}

pub fn measure(contenders: Vec<Contender>, places: &Places, quick: bool, full: bool, progress: &Progress) -> Footprint {
    let (live, memory) = if full { (LIVE_FULL, MEMORY_FULL) } else { (LIVE, MEMORY) };
    let processes = if quick { 5 } else { 21 };
    let mut first_us: Vec<Result<Vec<f64>, String>> = contenders.iter().map(|_| Ok(Vec::new())).collect();
    for process in 0..processes {
        progress.show(&format!("first calls: process {} of {processes}", process + 1));
        for (contender, first_us) in contenders.iter().zip(&mut first_us) {
            match (grow(contender, places, MEMORY, 1, 0), &mut *first_us) {
                (Ok(sample), Ok(all)) => all.push(sample.first_ns / 1e3),
                (Err(why), Ok(_)) => *first_us = Err(why),
                (_, Err(_)) => {}
            }
        }
    }
    let grown = contenders.iter().map(|contender| {
        let grown = live.iter().map(|&live| {
            progress.show(&format!("{} live blocks: {}", text::count(live), contender.name));
            grow(contender, places, memory, live, live * TURNOVER)
        });
        grown.collect()
    });
    let grown = grown.collect();
    Footprint {
        live,
        contenders,
        first_us,
        grown,
    }
}

fn grow(contender: &Contender, places: &Places, memory: &str, live: u64, pairs: u64) -> Result<Sample, String> {
    let journals = tempfile::tempdir_in(&places.scratch).map_err(|error| error.to_string())?;
    let arguments = [live, pairs];
    let output = contender
        .command(places, Device::Simulated, "grow", memory, &arguments, journals.path())
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [first_ns, bytes, events] if output.status.success() => Ok(Sample {
            first_ns,
            bytes,
            events,
            journal_bytes: bytes_on_disk(journals.path()),
        }),
        _ => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let last = complaint.lines().rev().find(|line| !line.trim().is_empty());
            Err(format!("{} {}", said.trim(), last.unwrap_or_default()))
        }
    }
}

/// The bytes that the files of a folder take, with holes left out.
fn bytes_on_disk(folder: &Path) -> f64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let blocks = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks()));
    blocks.sum::<u64>() as f64 * 512.0
}

impl Footprint {
    fn first(&self, contender: usize) -> Option<f64> {
        median(self.first_us[contender].as_ref().ok()?.clone())
    }

    /// What the library adds to the first call: the median over the processes.
    fn first_added(&self, contender: usize) -> Option<f64> {
        let bare = self.contenders.iter().position(|contender| contender.name == "bare")?;
        self.contenders[contender].strategy()?;
        let (Ok(ours), Ok(bare)) = (&self.first_us[contender], &self.first_us[bare]) else {
            return None;
        };
        median(ours.iter().zip(bare).map(|(ours, bare)| ours - bare).collect())
    }

    fn bytes_per_block(&self, contender: usize, live: usize) -> Option<f64> {
        // The blocks of a contender on host memory are host memory themselves.
        if self.contenders[contender].kind == Kind::Host {
            return None;
        }
        let sample = self.grown[contender][live].as_ref().ok()?;
        Some(sample.bytes / self.live[live] as f64)
    }

    fn journal_bytes_per_event(&self, contender: usize, live: usize) -> Option<f64> {
        self.contenders[contender].strategy()?;
        let sample = self.grown[contender][live].as_ref().ok()?;
        Some(sample.journal_bytes / sample.events)
    }

    pub fn print(&self) {
        println!("The first block of a process: microseconds from loading the driver, and how many the library adds");
        let mut table = Table::new();
        text::prepare(&mut table, ["", "us", "added"].into_iter().map(str::to_owned));
        let word = |value: Option<f64>| value.map_or("-".to_owned(), |us| format!("{us:.0}"));
        for (index, contender) in self.contenders.iter().enumerate() {
            table.add_row([
                contender.name.to_owned(),
                word(self.first(index)),
                word(self.first_added(index)),
            ]);
        }
        text::align(&mut table, 1);
        println!("{table}");
        self.table(
            "bytes of host memory for each live block (bare: what the simulated GPU itself takes)",
            Self::bytes_per_block,
        );
        self.table(
            "bytes of the journal's file for each allocation and free (the file doubles when it is full)",
            Self::journal_bytes_per_event,
        );
        for (contender, why) in self.refusals() {
            println!("  no number for {contender}: {why}");
        }
    }

    fn table(&self, title: &str, value: impl Fn(&Self, usize, usize) -> Option<f64>) {
        println!("\n{title}");
        let mut table = Table::new();
        let heads = self.live.iter().map(|&live| format!("{} live", text::count(live)));
        text::prepare(&mut table, ["".to_owned()].into_iter().chain(heads));
        for (index, contender) in self.contenders.iter().enumerate() {
            let cells = (0..self.live.len())
                .map(|live| value(self, index, live).map_or("-".to_owned(), |bytes| format!("{bytes:.1}")));
            table.add_row([contender.name.to_owned()].into_iter().chain(cells));
        }
        text::align(&mut table, 1);
        println!("{table}");
    }

    fn refusals(&self) -> Vec<(&str, &String)> {
        let mut refusals = Vec::new();
        for ((contender, first), grown) in self.contenders.iter().zip(&self.first_us).zip(&self.grown) {
            let grown = grown.iter().filter_map(|sample| sample.as_ref().err());
            refusals.extend(
                first
                    .as_ref()
                    .err()
                    .into_iter()
                    .chain(grown)
                    .map(|why| (contender.name, why)),
            );
        }
        refusals
    }

    pub fn json(&self) -> Value {
        let contenders = self.contenders.iter().enumerate().map(|(index, contender)| {
            let grown = self.live.iter().enumerate().map(|(place, live)| {
                json!({
                    "live": live,
                    "bytes_per_live_block": self.bytes_per_block(index, place),
                    "journal_bytes_per_event": self.journal_bytes_per_event(index, place),
                })
            });
            json!({
                "contender": contender.name,
                "first_us": self.first(index),
                "first_added_us": self.first_added(index),
                "grown": grown.collect::<Vec<_>>(),
            })
        });
        json!({
            "contenders": contenders.collect::<Vec<_>>(),
            "why": self.refusals().iter().map(|(name, why)| format!("{name}: {why}")).collect::<Vec<_>>(),
        })
    }

    /// Whether every measurement of the library's own strategies succeeded.
    pub fn complete(&self) -> bool {
        let ours = |name: &str| {
            let contender = self.contenders.iter().find(|contender| contender.name == name);
            contender.is_some_and(|contender| contender.strategy().is_some())
        };
        self.refusals().into_iter().all(|(name, _)| !ours(name))
    }
}
