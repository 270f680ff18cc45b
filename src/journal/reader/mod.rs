//! Reads journals, in the program. The process that writes the journal may be running, ended or killed.
//!
//! Offsets come from `format`, never from the file; the number of slots comes from the file's size. The file is read in
//! blocks and not mapped: if a mapped file were cut short, SIGBUS would kill the reader. A slot whose commit word does
//! not match is skipped. `records` puts the records of the other slots in order. `follow` does so while the process
//! still writes.

mod error;
mod follow;
mod header;
mod journal;
mod records;

pub use error::{OpenError, Problem};
pub use follow::Follower;
pub use header::{Device, HandedOut, Header};
pub use journal::{Journal, State};
pub use records::Records;

#[cfg(test)]
mod tests;
