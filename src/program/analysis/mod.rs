//! Rebuilds the ledger of a job from its journal, and compares the ledger with the driver and NVML.
//!
//! `job` reads a whole journal into a `ledger`, which has a `device_ledger` for each device. `space` keeps the free
//! ranges inside segments, and `slack` bounds what the driver's pages add. `measurements` keeps what NVML and the next
//! layer reported. `host_levels` keeps what the process held of the host's memory, and `surges` what grew too fast. `scene` counts requests that failed for lack of memory and keeps what was known when the last one failed, `floors` tells a leak, `came` what may be one, and `finding` says why the
//! request failed. `names` has the names of numbers in records. `running` finds the processes that write journals now,
//! `watch` follows one such journal by its `figures`, which need no allocation remembered, and `held` says what is live and what
//! is cached.
//!
//! `reconciliation` explains the difference between the ledger and NVML for one process, `side_by_side` for a device
//! with all its processes. `side_by_side` uses `host` (real or simulated GPU), `nvml` (asks NVML) and `device_code`
//! (GPU code that a process has mapped).
//!
//! `tensor_records` merges PyTorch's tensors into the records of the journal, and `tensors` says which lines held them.
//! `symbols` reads the stacks of requests and names their native frames;
//! `stack_uses` sums who holds memory by them; `places` and `labels`
//! say what a stack is called. `frameless` says why an allocation has no frames. `each_once` numbers what occurs often.

pub mod budget;
pub mod came;
mod device_code;
pub mod device_ledger;
pub mod each_once;
pub mod figures;
pub mod finding;
pub mod floors;
pub mod frameless;
pub mod growth;
pub mod held;
pub mod holdings;
pub mod host;
pub mod host_levels;
pub mod job;
pub mod labels;
pub mod landmarks;
pub mod ledger;
pub mod live_set;
pub mod measurements;
pub mod names;
pub mod nvml;
pub mod origins;
pub mod places;
pub mod pod;
pub mod ranges;
pub mod rank;
pub mod reconciliation;
pub mod running;
pub mod runs;
#[cfg(test)]
mod samples;
pub mod scene;
pub mod secrets;
pub mod siblings;
pub mod side_by_side;
pub mod slack;
pub mod space;
pub mod stack_uses;
pub mod surges;
pub mod symbols;
pub mod tensor_records;
pub mod tensors;
pub mod timeline;
pub mod watch;
