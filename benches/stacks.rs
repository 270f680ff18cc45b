//! Measures what the stack of a request costs, with 20 frames: for native frames in a C program, for Python frames in a
//! Python.
//!
//! The processes take turns. Other work on the machine only ever adds time, so a number is the least of all short
//! rounds, and the cost of a stack is the difference of two such numbers.

use std::path::{Path, PathBuf};
use std::process::Command;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::text::Progress;

/// Pairs in a round: about a tenth of a millisecond, so that some rounds are not disturbed.
const PAIRS: u32 = 50;
const ROUNDS: u32 = 400;

struct Row {
    /// The program that allocates.
    program: String,
    stacks: &'static str,
    /// The nanoseconds of a pair; `None` if it failed.
    pair_ns: Option<f64>,
    /// What the stack adds to it.
    added_ns: Option<f64>,
}

pub struct Stacks(Vec<Row>);

/// A command that prints the nanoseconds of each round.
struct Program {
    name: String,
    command: Vec<PathBuf>,
    kinds: &'static [&'static str],
}

pub struct Places<'a> {
    /// The folder of the library.
    pub release: &'a Path,
    pub programs: &'a Path,
    pub simgpu: &'a Path,
    pub scratch: &'a Path,
    pub pythons: &'a [PathBuf],
}

fn least_ns(program: &Program, kinds: &str, places: &Places) -> Option<f64> {
    let output = Command::new(&program.command[0])
        .args(&program.command[1..])
        .args([ROUNDS.to_string(), PAIRS.to_string()])
        .env("LD_PRELOAD", places.release.join("libvramshim.so"))
        .env("LD_LIBRARY_PATH", places.simgpu)
        .env("VRAMSHIM_STACKS", kinds)
        .env("VRAMSHIM_DIR", places.scratch.join("journals"))
        .env("SIMGPU_MEMORY", "1GiB")
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.parse().ok()).reduce(f64::min)
}

pub fn measure(repetitions: usize, places: &Places, progress: &Progress) -> Stacks {
    let mut programs = vec![Program {
        name: "C".to_owned(),
        command: vec![places.programs.join("stacks")],
        kinds: &["off", "native"],
    }];
    for python in places.pythons {
        programs.push(Program {
            name: python.display().to_string(),
            command: vec![python.clone(), "benches/stacks.py".into()],
            kinds: &["off", "python", "native", "both"],
        });
    }
    let mut rows = Vec::new();
    for program in &programs {
        let mut least: Vec<Option<f64>> = vec![None; program.kinds.len()];
        for repetition in 0..repetitions {
            progress.show(&format!("{}: {} of {repetitions}", program.name, repetition + 1));
            for (least, kinds) in least.iter_mut().zip(program.kinds) {
                let found = least_ns(program, kinds, places);
                *least = [*least, found].into_iter().flatten().reduce(f64::min);
            }
        }
        for (&stacks, &pair_ns) in program.kinds.iter().zip(&least) {
            let added_ns = pair_ns.zip(least[0]).map(|(with, off)| with - off);
            rows.push(Row {
                program: program.name.clone(),
                stacks,
                pair_ns,
                added_ns: added_ns.filter(|_| stacks != "off"),
            });
        }
    }
    Stacks(rows)
}

impl Stacks {
    pub fn print(&self) {
        println!("\nStacks of 20 frames: nanoseconds of an allocation and its free, and what the stack adds\n");
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["program", "stacks", "pair ns", "added ns"]);
        let number = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
        for row in &self.0 {
            let numbers = [number(row.pair_ns), number(row.added_ns)];
            table.add_row([row.program.clone(), row.stacks.to_owned()].into_iter().chain(numbers));
        }
        println!("{table}");
    }

    pub fn json(&self) -> Vec<Value> {
        let row = |row: &Row| {
            json!({
                "program": row.program,
                "stacks": row.stacks,
                "pair_ns": row.pair_ns,
                "added_ns": row.added_ns,
            })
        };
        self.0.iter().map(row).collect()
    }
}
