//! Segments cut into blocks: best fit, split, and joined again within a segment.
//!
//! A freed block is *clean* if no work uses it, and *dirty* otherwise. `cuMemFree` waits for the work before it returns,
//! and the block is clean then. Other blocks become clean when a wait has ended that began after they were freed, or
//! when events of their streams are done. A request waits for nothing: it gets a clean block, or one that only its own
//! stream has used, because the work of one stream runs in order. While a stream capture is open, it gets clean blocks
//! only.
//!
//! - `request`: what a request is on its way through a policy
//! - `batches`: the blocks that become clean together
//! - `segments`: the struct `Arena`, its segments, and the lists of its free blocks
//! - `reuse`: which free block serves a request, and how dirty blocks become clean
//! - `cuts`: cutting a free block for a request, and freeing it again
//! - `holes`: segments whose memory is mapped, unmapped or given back in parts
//! - `queries`: questions that change nothing

mod batches;
mod cuts;
mod holes;
mod queries;
mod request;
mod reuse;
mod segments;

pub use request::{Cut, Region, Request};
pub use segments::Arena;
