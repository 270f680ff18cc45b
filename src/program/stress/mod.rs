//! `vramshim stress`: workers make the driver work under each strategy, and their books are compared.
//!
//! A `worker` is a process under the library. It takes memory, writes patterns and reads them back, and gives the memory
//! back. At rest points it asks the ledger, the driver and NVML, and `compare` compares them with its own count. `turn`
//! starts a worker and hears its `outcome`. `baseline` compares two runs.

pub mod baseline;
mod compare;
pub mod outcome;
pub mod turn;
mod worker;

pub use worker::run as work;
