//! Plays a recorded sequence of requests through strategies, offline.
//!
//! `trace` reads the requests from a journal, `rmm_log` from RMM's log, `snapshot` from PyTorch's snapshot; all three
//! collect them in `gathering`. `play` plays the requests on the model
//! `device` through one of our policies, `torch` (PyTorch's caching allocator) or `paddle` (Paddle's two allocators);
//! the segments of these two consist of `blocks`.

mod blocks;
pub mod device;
mod gathering;
mod paddle;
mod play;
pub mod requests;
mod rmm_log;
mod snapshot;
mod torch;
mod trace;

pub use gathering::Unplayed;
pub use play::{Outcome, Setup, allocator, play, smallest_device, strategies};
pub use requests::Trace;
