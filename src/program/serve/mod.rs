//! `vramshim serve`: the metrics of all jobs of a node, read from their journals.
//!
//! `folders` finds the journals, and `node` reads what is new. `followed_process` and `figures` keep what each says, and
//! `counted` what was counted for the node. `accounts` reads the shared accounts, and `devices` asks NVML. `metrics` writes
//! all this as text. `server` answers HTTP requests; `address` is where it listens, `places` bounds the connections, `token`
//! says who may ask, and `end` what ends it.

mod accounts;
mod address;
mod counted;
mod devices;
mod end;
mod folders;
mod followed_process;
mod metrics;
mod node;
mod places;
mod server;
mod token;

pub use address::Address;
pub use end::End;
pub use metrics::text;
pub use node::{Node, Options};
pub use server::{Server, serve};
pub use token::TokenFile;
