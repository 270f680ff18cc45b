//! Writes journals of made-up training jobs (`training.rs`) into a folder, for measurements of the program's commands.
//!
//! usage: cargo run --package vramshim-tests --example journals -- FOLDER EVENTS [RANKS] [STRATEGY] [LEAK] [oom]
//!
//! EVENTS is the number of events of each rank; LEAK the bytes that each step keeps.

use std::path::Path;

use support::training::{self, Plan};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize, default: &'static str| arguments.get(place).map_or(default, String::as_str);
    let number = |place, default| argument(place, default).replace('_', "").parse().expect("a number");
    let plan = Plan {
        events: number(1, ""),
        strategy: argument(3, "auto_growth").into(),
        leak: number(4, "0"),
        out_of_memory: argument(5, "") == "oom",
        ..Plan::default()
    };
    let folder = Path::new(argument(0, "."));
    std::fs::create_dir_all(folder).expect("a folder");
    let written = training::write_ranks(folder, &plan, number(2, "1") as u32).expect("journals");
    for (path, truth) in written {
        println!(
            "{}: {} events, {} steps, peak {} bytes, live {} bytes in {} allocations",
            path.display(),
            truth.events,
            truth.steps,
            truth.peak,
            truth.live_bytes,
            truth.live
        );
    }
}
