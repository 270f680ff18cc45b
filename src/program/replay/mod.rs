//! Plays a recorded sequence of requests through policies, offline.
//!
//! `trace` reads the sequence (`snapshot` where it is PyTorch's), `device` is the simulated device memory under our own
//! policies, `torch` models PyTorch's caching allocator and `paddle` Paddle's two. Each answers the same question: how
//! much would have been reserved for what was asked. `recommendation` tells which answer is worth acting upon.

mod allocator;
pub mod device;
mod gathering;
mod paddle;
mod play;
pub mod recommendation;
mod rmm_log;
mod snapshot;
mod torch;
mod trace;

pub use gathering::{Request, Source};
pub use play::{Outcome, STRATEGIES, play, smallest_device};
pub use trace::Trace;
