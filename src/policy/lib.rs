//! The allocation policies: which bytes a request gets.
//!
//! A policy serves one context of one device. It sees memory through the trait `DeviceMemory` and nothing else, so the
//! same code serves a live GPU and an offline replay. `strategies` is the one list of what a user can choose.
//!
//! From top to bottom:
//!
//! - `strategies`: the list; `naive_best_fit`, `auto_growth`: its policies; `slabs`: the policy of a subpool
//! - `arena_policy`: turns rules over an arena into a `Policy`
//! - `arena`: segments cut into blocks, best fit, and when a freed block may be used again
//! - `free_index`, `blocks`: the data structures of the arena
//! - `policy`, `settings`, `device_memory`: the types and traits that all of them share

mod arena;
mod arena_policy;
mod auto_growth;
mod blocks;
pub mod device_memory;
mod free_index;
mod naive_best_fit;
mod policy;
mod settings;
pub mod slabs;
mod strategies;

pub use policy::{Backing, Block, Policy, Statistics, VirtualMemory};
pub use settings::Settings;
pub use slabs::subpool;
pub use strategies::Strategy;
