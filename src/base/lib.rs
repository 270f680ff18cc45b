//! What every part shares and nothing of the project stands below: units, UUIDs, names and constants of the CUDA API,
//! files that are opened with care, and the identity of a process.

pub mod api;
pub mod cuda;
pub mod file;
pub mod identity;
pub mod process;
pub mod sync;
pub mod units;
pub mod uuid;
