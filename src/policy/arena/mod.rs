//! Segments cut into blocks: best fit, split, and joined again within a segment.
//!
//! `cuMemFree` waits for the work that uses the memory. A policy keeps a freed block without waiting, so the block is
//! *dirty*: work that uses it may still run. One synchronisation of the context makes every block *clean* that was
//! freed before it. A dirty block is handed out only if the request names the stream that freed it, because the work of
//! one stream runs in order. While a stream capture is open, a synchronisation would break it, so only clean blocks are
//! handed out.
//!
//! - `request`: what a request is on its way through a policy
//! - `wait`: what a dirty block waits for
//! - `segments`: the struct `Arena`, its segments, and the lists of its free blocks
//! - `reuse`: which free block serves a request, and the synchronisation that cleans dirty blocks
//! - `cuts`: cutting a free block for a request, and freeing it again
//! - `holes`: segments whose memory is mapped, unmapped or given back in parts
//! - `queries`: questions that change nothing

mod cuts;
mod holes;
mod queries;
mod request;
mod reuse;
mod segments;
mod wait;

pub use request::{Cut, Region, Request};
pub use segments::Arena;
