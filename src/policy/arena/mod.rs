//! Segments cut into blocks: best fit, split, and joined again within a segment.
//!
//! A freed block is *clean* if no work uses it, and *dirty* otherwise. `cuMemFree` waits for the work before it returns,
//! and the block is clean then. Other blocks become clean when a wait has ended that began after they were freed, or
//! when events of their streams are done. A request waits for nothing: it gets a clean block, or one that only its own
//! stream has used, because the work of one stream runs in order. While a stream capture is open, it gets clean blocks
//! only.
//!
//! - `region`: which part of the memory serves a request
//! - `batches`: the blocks that become clean together
//! - `segments`: the struct `Arena`, its segments, and the lists of its free blocks
//! - `reuse`: which free block serves a request, and how dirty blocks become clean
//! - `cuts`: cutting a free block for a request, and freeing it again
//! - `holes`: segments whose memory is mapped or unmapped in parts; `returns`: memory that is given back
//! - `runs`: usable memory in several blocks; `streams`: whether one stream alone uses the memory
//! - `events`: the events that tell when batches are clean
//! - `queries`: questions that change nothing

mod batches;
mod cuts;
mod events;
mod holes;
mod queries;
mod region;
mod returns;
mod reuse;
mod runs;
mod segments;
mod streams;

pub use holes::Claim;
pub use region::{Cut, Region};
pub use segments::Arena;
