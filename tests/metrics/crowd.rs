//! Keeps the journals of many made-up running processes, for measurements of `vramshim serve`.
//!
//! usage: cargo run --package vramshim-tests --example crowd -- FOLDER PROCESSES EVENTS
//!
//! Writes EVENTS events into each journal at the start, and as many again for each line of standard input. Answers each
//! time with the number of events so far. Ends with standard input.

use std::path::PathBuf;
use std::process::ExitCode;

use base::api::{Api, Class};
use journal::format::Device;
use journal::format::{Allocation, Event, Library};
use journal::writer::{Journal, Options};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place).and_then(|text| text.parse::<u64>().ok());
    let (Some(folder), Some(processes), Some(events)) = (arguments.first().map(PathBuf::from), number(1), number(2))
    else {
        eprintln!("usage: crowd FOLDER PROCESSES EVENTS");
        return ExitCode::from(2);
    };
    let mut journals = Vec::new();
    for _ in 0..processes {
        let journal = Journal::create(&Options {
            directory: folder.clone(),
            strategy: "auto_growth".into(),
            job: "crowd".into(),
            max_bytes: 64 << 20,
            command_line: b"python\0train.py".to_vec(),
            environment: b"RANK=3".to_vec(),
        });
        match journal {
            Ok(journal) => {
                journal.device(&Device {
                    total_memory: 80 << 30,
                    uuid: [7; 16],
                    name: "Made-up GPU".into(),
                    limit: Some(64 << 30),
                    ..Device::default()
                });
                journals.push(journal);
            }
            Err(problem) => {
                eprintln!("crowd: {problem}");
                return ExitCode::FAILURE;
            }
        }
    }
    let mut count: u64 = 0;
    let mut write = || {
        for event in 0..events {
            let allocation = Allocation {
                class: Class::Linear.into(),
                address: 0x7f00_0000_0000 + (event / 2) * 4096,
                requested: 4000,
                allocated: 4096,
                reserved: None,
                cache: Library::NotKnown,
                stream: 1,
            };
            let event = match event % 2 {
                0 => Event::Alloc(allocation),
                _ => Event::Free {
                    allocation,
                    context_gone: false,
                },
            };
            for journal in &journals {
                journal.write(event.encode(Api::cudaMalloc, 0));
                count += 1;
            }
        }
        println!("{count}");
    };
    write();
    for _ in std::io::stdin().lines() {
        write();
    }
    ExitCode::SUCCESS
}
