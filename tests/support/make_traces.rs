//! Writes the generated sequences of `traces.rs` as CSV files into a folder, for `vramshim replay`.
//!
//! usage: cargo run --release --package vramshim-tests --example traces -- FOLDER

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use support::traces;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        eprintln!("usage: traces FOLDER");
        return ExitCode::from(2);
    };
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(&folder)?;
        traces::all(|name, events| traces::write_csv(&folder.join(format!("{name}.csv")), events))
    };
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("traces: {}: {problem}", folder.display());
            ExitCode::FAILURE
        }
    }
}
