//! What the crates of the project share: units, UUIDs, names and constants of the CUDA API, file system calls, locks,
//! the identity of a process, where its control socket is, messages, notes of ELF files, the file of what was found of a
//! driver, and known layers. This crate imports no other crate of the project.

pub mod api;
pub mod cancellation;
pub mod control;
pub mod cuda;
pub mod descriptor;
pub mod file;
pub mod filesystem;
pub mod identity;
pub mod kernel;
pub mod layers;
pub mod locks;
pub mod mutant;
pub mod named;
pub mod notes;
pub mod process;
pub mod say;
pub mod shortage;
pub mod signals;
pub mod sockets;
pub mod stats;
pub mod sync;
pub mod text;
pub mod units;
pub mod uuid;
pub mod verdict;
