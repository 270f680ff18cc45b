//! The journal: what happened to GPU memory in one process, written so that it survives the process.
//!
//! `format` is the bytes on disk, `writer` runs inside the job, `reader` in the tools.

mod bytes;
mod file;
pub mod format;
pub mod reader;
pub mod writer;
