//! The environment variables: one table of them, and the environment read into one `Config`.
//!
//! `table` has an entry for each variable, `read` turns the environment into a `Config` (`settings`), `parse` reads
//! single values, `change` reads settings that change while the job runs, `unknown` finds variables with names of no entry,
//! and `folder` chooses where journals are. If a value cannot be used, the library takes the variable's default, and
//! `vramshim run` refuses to start the job.

mod change;
mod folder;
mod parse;
mod read;
mod settings;
pub mod table;
mod unknown;

pub use change::{Change, Unchanged};
pub use folder::{DefaultFolder, default_folder, python_folder};
pub use parse::parse_duration;
pub use read::ConfigError;
pub use settings::{Config, DEEPEST_STACK, LogLevel, Stacks, Strict, Surge};
pub use table::{VARIABLES, Variable, explaining_variables, is_allocator_setting};
pub use unknown::{Unknown, unknown_variables};

#[cfg(test)]
mod tests;
