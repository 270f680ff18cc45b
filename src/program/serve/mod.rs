//! `vramshim serve`: the metrics of all jobs of a node, read from their journals.
//!
//! `node` finds the journals and reads what is new, `process` and `figures` keep what each says, `accounts` reads the shared accounts, `metrics`
//! makes metrics of it, and `open_metrics` writes them as text, and `otlp` sends them. `jobs` lists the processes as a page, and `reports` makes the pages about one of them. `server` answers HTTP requests; `address` is where it listens, `token` who may ask, and `end` what ends it.

mod accounts;
mod address;
mod end;
mod figures;
mod jobs;
mod metrics;
mod node;
mod open_metrics;
pub mod otlp;
mod plain_text;
mod process;
mod reports;
mod series;
mod server;
mod token;

pub use address::Address;
pub use end::End;
pub use node::{Node, Options, now_ns};
pub use open_metrics::text;
pub use plain_text::from_open_metrics;
pub use server::{Pages, Server, serve};
pub use token::Token;
