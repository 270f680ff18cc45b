//! Writes a journal, inside the job. The journal is a file that survives the process, however the process ends.
//!
//! The file is mapped shared. So a record survives SIGKILL as soon as it is stored: the mapped pages belong to the
//! kernel, not to the process. To write a record, a thread takes a slot, reads the clock, copies 56 bytes and does a
//! Release store. It takes no lock, allocates nothing and makes no system call, unless the file must grow.
//!
//! Address space for the largest size of the file is reserved at the start. The file grows into this space, so mapped
//! slots never move. Growth allocates blocks on disk: on a full disk, a store into a sparse file would kill the job
//! with SIGBUS.
//!
//! Nothing here panics or stops the job. While the file cannot grow, new records take the place of older ones in the
//! last part of the file (`ring`), and the records that are lost are counted. At most once a second a thread tries
//! again to grow the file. `ahead` spares the writers page faults. `stacks` writes the file of stacks beside the journal.

mod ahead;
mod header;
mod journal;
mod mapping;
#[cfg(test)]
mod models;
mod past;
mod ring;
mod slots;
mod stacks;

use std::sync::atomic;

pub use crate::file::CreateError;
pub use header::About;
pub use journal::{Claim, Journal, Outcome};
pub use past::PastJournal;
pub use stacks::{Line, StackFile};
