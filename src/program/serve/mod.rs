//! `vramshim serve`: the metrics of all jobs of a node, read from their journals.
//!
//! `node` finds the journals and reads what is new. `process` and `figures` keep what each says, and `counted` what was
//! counted for the node. `accounts` reads the shared accounts. `metrics` makes metrics of all this, which are `series`; `open_metrics` writes them as text, and `otlp` sends
//! them. `found` gives the journals names for addresses, and `summary` says what a page tells of a process. `jobs` lists the
//! processes, `ranks` shows one job, and `frame` is the frame of both pages. `reports` makes the pages about one process.
//! `server` answers HTTP requests; `address` is where it listens, `places` bounds the connections, `token` says
//! who may ask, and `end` what ends it.

mod accounts;
mod address;
mod counted;
mod end;
mod figures;
mod found;
mod frame;
mod jobs;
mod metrics;
mod node;
mod open_metrics;
pub mod otlp;
mod places;
mod plain_text;
mod process;
mod ranks;
mod reports;
mod series;
mod server;
mod summary;
mod token;

pub use address::Address;
pub use end::End;
pub use node::{Node, Options, now_ns};
pub use open_metrics::text;
pub use plain_text::from_open_metrics;
pub use server::{Pages, Server, serve};
pub use token::TokenFile;
