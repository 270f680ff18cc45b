//! vramshim: one account of a CUDA job's GPU memory, kept by standing between the job and the driver.
//!
//! The crate is built twice over: as `libvramshim.so` (preloaded into the job: `abi -> engine -> policy | ledger |
//! quota | journal -> real`) and as a library for the program `vramshim` (`cli -> analysis -> journal`). Imports run downwards only.

pub mod abi;
pub mod api;
pub mod config;
pub mod device_memory;
mod engine;
pub mod journal;
mod ledger;
mod log;
pub mod policy;
mod process;
pub mod quota;
mod real;
pub mod units;
