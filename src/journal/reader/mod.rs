//! Reads journals, in the program. The process that writes the journal may be running, ended or killed.
//!
//! Offsets come from `format`, never from the file; the number of slots comes from the file's size. The file is read in
//! blocks and not mapped: if a mapped file were cut short, SIGBUS would kill the reader. A slot whose commit word does
//! not match is skipped. `records` hands out the records of the other slots in order (`order`), and `gaps` counts slots of
//! zeros that must have held a record. While the process still writes, `tail` hands them out in no order, for sums.
//! `tensors` reads the file of PyTorch's tensors beside a
//! journal, `stacks` the file of stacks; `lines` has what both share.
//!
//! Another user may have placed the files, and their bytes may be made up to cost a reader time and memory. So `plain`
//! opens nothing but plain files, and no reader takes more time or memory than what the files really hold demands: it
//! passes over holes.

mod error;
mod gaps;
mod header;
mod journal;
mod lines;
mod order;
pub mod plain;
mod records;
mod stacks;
mod tail;
mod tensors;
mod texts;

pub use crate::format::Device;
pub use error::{OpenError, Problem};
pub use header::Header;
pub use journal::{Journal, State};
pub use lines::NotBeside;
pub(crate) use plain::may_lie_beside;
pub use records::Records;
pub use stacks::{Module, Place, Stacks};
pub use tail::{Reading, Tail};
pub use tensors::{CacheSums, TensorFile, Wanted};
pub use texts::Texts;

#[cfg(test)]
mod tests;
