//! Keeps the journals of many made-up running processes, for measurements of `vramshim serve`.
//!
//! usage: cargo run --package vramshim-tests --example crowd -- FOLDER PROCESSES EVENTS
//!
//! Writes EVENTS events into each journal at the start, and as many again for each line of standard input. Answers each
//! time with the number of events so far. Ends with standard input.

use base::api::Api;
use journal::format::{Device, Event};
use journal::writer::{About, Journal};
use support::made::{free, linear};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, processes, events] = &arguments[..] else {
        panic!("usage: crowd FOLDER PROCESSES EVENTS");
    };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let create = |_| {
        let about = About {
            strategy: "auto_growth".into(),
            job: "crowd".into(),
            command_line: b"python\0train.py".to_vec(),
            environment: b"RANK=3".to_vec(),
            ..About::default()
        };
        let journal = Journal::create(folder.as_ref(), 64 << 20, about).expect("a journal");
        journal.device(&Device {
            total_memory: 80 << 30,
            uuid: [7; 16],
            name: "Made-up GPU".into(),
            limit: Some(64 << 30),
            ..Device::default()
        });
        journal
    };
    let journals: Vec<Journal> = (0..number(processes)).map(create).collect();
    let mut count: u64 = 0;
    let mut write = || {
        for event in 0..number(events) {
            let allocation = linear(0x7f00_0000_0000 + (event / 2) * 4096, 4096);
            let event = if event % 2 == 0 {
                Event::Alloc(allocation)
            } else {
                free(allocation)
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
}
