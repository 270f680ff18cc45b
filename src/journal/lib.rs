//! The journal: a file with what happened to GPU memory in one process. The file survives the process.
//!
//! `format` defines the bytes on disk and the typed events that they stand for. `writer` runs inside the job, `reader`
//! in the program. `copy` makes dumps, in both.

pub mod copy;
mod file;
pub mod format;
pub mod reader;
pub mod writer;
