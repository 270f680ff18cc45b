//! Writes journals of made-up training jobs (`training.rs`) into a folder, for measurements of the program's commands.
//!
//! usage: cargo run --package vramshim-tests --example journals -- FOLDER EVENTS [RANKS] [STRATEGY] [LEAK] [oom]
//!
//! EVENTS is the number of events of each rank; LEAK the bytes that each step keeps.

use std::path::PathBuf;
use std::process::ExitCode;

use support::training::{self, Plan};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| {
        let text = arguments.get(place).map(|text| text.replace('_', ""));
        text.map_or(Some(default), |text| text.parse().ok())
    };
    let (Some(folder), Some(events), Some(ranks), Some(leak)) = (
        arguments.first().map(PathBuf::from),
        number(1, 0).filter(|&events| events > 0),
        number(2, 1),
        number(4, 0),
    ) else {
        eprintln!("usage: journals FOLDER EVENTS [RANKS] [STRATEGY] [LEAK] [oom]");
        return ExitCode::from(2);
    };
    let plan = Plan {
        events,
        strategy: arguments.get(3).map_or("auto_growth", String::as_str).into(),
        leak,
        out_of_memory: arguments.get(5).is_some_and(|text| text == "oom"),
        ..Plan::default()
    };
    let written = std::fs::create_dir_all(&folder).and_then(|()| training::write_ranks(&folder, &plan, ranks as u32));
    match written {
        Ok(written) => {
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
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("journals: {}: {problem}", folder.display());
            ExitCode::FAILURE
        }
    }
}
