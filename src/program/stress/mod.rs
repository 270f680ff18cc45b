//! `vramshim stress`: workers make the driver work under each strategy, and their books are compared.
//!
//! A `worker` is a process under the library. It takes memory, writes patterns and reads them back, and gives the memory
//! back. At rest points it waits and tells what it holds (`message`). `turn` starts a worker, asks NVML at each rest
//! point, and `checks` compares the worker's count, the ledger, the driver and NVML. `calls` is a file by which a call
//! that hangs or crashes is known. `prices` has what calls took, `baseline` keeps the outcome of a run in a file, and
//! `against` compares two of them. `fault` is what broke.

pub mod against;
pub mod baseline;
mod calls;
mod checks;
pub mod fault;
mod message;
mod prices;
mod turn;
mod worker;

pub use message::Order;
pub use turn::{Outcome, Turn, Watched};
pub use worker::run as work;
