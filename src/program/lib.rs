//! The program `vramshim`: starts jobs under the library and reads what it wrote.
//!
//! `commands` is the command line, one module a subcommand; `analysis` is what journals and devices say, `replay` what
//! other strategies would have done, `render` what the commands share about how an answer looks.

pub mod analysis;
mod commands;
mod failure;
mod journals;
mod launch;
mod render;
pub mod replay;

pub use commands::main;
