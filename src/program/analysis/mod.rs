//! What a journal means: its events replayed into an account of memory, and that beside what driver and NVML say.
//!
//! `job` reads a whole journal, `account` is the replay, `space` the free room inside segments, `slack` what the driver's
//! pages hold beyond them, `measured` what others said meanwhile, `codes` the names of result codes. `running` finds the
//! processes that write journals now, `watch` reads along with one of them. `reconciliation` explains the differences,
//! `side_by_side` for the running processes of whole devices: `host` tells whose GPU theirs is, `nvml` asks about it,
//! `device_code` looks for code in what they have mapped.

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
