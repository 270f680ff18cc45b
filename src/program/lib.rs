//! The program `vramshim`: starts jobs under the library and reads the journals that the library wrote.
//!
//! `commands` is the command line, with a module for each subcommand. `launch` starts jobs, `journals` finds and reads
//! journals, and `analysis` rebuilds ledgers and compares them with devices. `replay` plays requests through other
//! strategies, and `render` formats results.

pub mod analysis;
mod commands;
mod failure;
mod journals;
mod launch;
mod render;
pub mod replay;

pub use commands::main;
