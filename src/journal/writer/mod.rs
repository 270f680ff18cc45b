//! The journal's end inside the job: a file that outlives the process however it dies.
//!
//! The file is mapped shared. So a record is safe from SIGKILL as soon as it is stored: its pages belong to the kernel,
//! not to the process. A record costs a slot, a look at the clock, a copy of 56 bytes and a Release store, but no lock,
//! no allocation and no system call. Address space for the largest size is reserved once and the file grows into it, so
//! nothing ever moves. A growth really allocates blocks: on a full disk, a store into a sparse file would kill the job
//! with SIGBUS.
//!
//! Nothing here panics or stops the job. While the file cannot grow, events are counted as lost. Growth is tried again
//! once a second, so disk space that becomes free is used.

mod journal;
mod mapping;
mod slots;

pub use crate::file::CreateError;
pub use journal::{Claim, Journal, Options, Outcome};
