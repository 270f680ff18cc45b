//! Segments cut into blocks: best fit, split, and joined again within a segment.
//!
//! A freed block is *clean* if no work uses it, and *dirty* otherwise. `cuMemFree` waits for the work before it returns,
//! and the block is clean then. Other blocks become clean when a wait has ended that began after they were freed, or
//! when events of their streams are done. A request waits for nothing: it gets a clean block, or one that only its own
//! stream has used, because the work of one stream runs in order. While a stream capture is open, it gets clean blocks
//! only.
//!
//! - `batches`: the blocks that become clean together, and which part of the memory serves a request
//! - `segments`: the struct `Arena`, its segments, the lists of its free blocks, and questions that change nothing
//! - `reuse`: which free block serves a request, and how dirty blocks become clean
//! - `cuts`: cutting a free block, or several side by side, for a request, and freeing it again
//! - `returns`: memory that is given back, mapped or unmapped
//! - `events`: the events that tell when batches are clean, and whether one stream alone uses the memory

mod batches;
mod cuts;
mod events;
mod returns;
mod reuse;
mod segments;

pub use batches::{Cut, Region};
pub use returns::Claim;
pub use segments::Arena;
