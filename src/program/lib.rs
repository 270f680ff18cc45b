//! The program `vramshim`: starts jobs under the library and reads the journals that the library wrote.
//!
//! `commands` is the command line, with a module for each subcommand. `launch` starts jobs, `journals` finds and reads
//! journals and leaves `copies` out, and `analysis` rebuilds ledgers and compares them with devices. `replay` plays
//! requests through other strategies, `import` reads files of other programs, `export` writes such files, and `render`
//! formats results. `report` makes the HTML page, and `serve` answers requests for metrics. `stress` makes a driver work,
//! and `driver` finds its functions. `inputs` keeps the files that a command reads. `escaped` keeps control characters from
//! terminals and out of JSON, and `say` writes messages.

// A message that cannot be written must not end the program, so it goes through `say`.
#![deny(clippy::print_stderr)]

pub mod analysis;
mod commands;
mod copies;
mod driver;
mod escaped;
mod export;
mod failure;
mod import;
mod inputs;
mod journals;
mod launch;
mod number;
mod output;
mod render;
pub mod replay;
mod report;
mod say;
mod serve;
mod stress;

pub use commands::main;
