//! Rebuilds the ledger of a job from its journal, and compares the ledger with the driver and NVML.
//!
//! `job` reads a whole journal into a `ledger`, which has a `device_ledger` for each device. `space` keeps the free
//! ranges inside segments, and `slack` bounds what the driver's pages add. `measurements` keeps what NVML and the next
//! layer reported. `out_of_memory` counts failures for lack of
//! memory. `names` has the names of numbers in records. `running` finds the processes that write journals now,
//! and `watch` follows one such journal.
//!
//! `reconciliation` explains the difference between the ledger and NVML for one process, `side_by_side` for a device
//! with all its processes. `side_by_side` uses `host` (real or simulated GPU), `nvml` (asks NVML) and `device_code`
//! (GPU code that a process has mapped).

mod device_code;
pub mod device_ledger;
mod host;
pub mod job;
pub mod ledger;
pub mod measurements;
pub mod names;
pub mod nvml;
pub mod out_of_memory;
pub mod reconciliation;
pub mod running;
pub mod side_by_side;
mod slack;
pub mod space;
pub mod tensors;
pub mod watch;
