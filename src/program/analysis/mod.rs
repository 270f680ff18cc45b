//! What journals mean: the ledger of a job rebuilt from its events, and that ledger compared with the driver and NVML.
//!
//! `job` reads a whole journal into a `ledger`, which has a `device_ledger` for each device. `space` keeps the free
//! ranges inside segments, `slack` bounds what the driver's pages add, `measurements` keeps what NVML and the next
//! layer reported, `names` has the names of numbers in records.
//! `running` finds the processes that write journals now, and `watch` follows the journal of one. `reconciliation`
//! explains the differences between ledger and NVML; `side_by_side` does so for whole devices with all their processes.
//! It uses `host` (real or simulated GPU), `nvml` (asks NVML) and `device_code` (GPU code that a process has mapped).

mod device_code;
pub mod device_ledger;
mod host;
pub mod job;
pub mod ledger;
pub mod measurements;
pub mod names;
pub mod nvml;
pub mod reconciliation;
pub mod running;
pub mod side_by_side;
mod slack;
pub mod space;
pub mod watch;
