//! The journal's end in the program: reads what a process wrote, dead or alive, and checks everything it uses.
//!
//! Offsets come from `format`, never from the file; how much there is comes from the file's size. The file is read in
//! blocks, not mapped: if a mapped file were cut short, the reader would be killed by SIGBUS. A slot whose commit word
//! does not match is skipped, and counted if an event had begun in it. `records` puts the others in order; `follow`
//! does so while the process still writes.

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
