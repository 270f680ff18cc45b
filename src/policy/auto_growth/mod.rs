//! `auto_growth`: grows with demand, and stays contiguous.
//!
//! Address space is reserved once, far more than the device has memory. Physical memory is created in granules and
//! mapped into it. Best fit serves most requests. A large request that no free block fits closely gets the place that
//! wastes least. If no free block is long enough, one is composed: whole free granules and free parts of granules in
//! use are mapped side by side, without a copy, and new granules are added if need be. So a request fails only if the
//! free granules and the free memory of the device together are less than it needs.
//!
//! Small requests have a region of their own, or use small free blocks that are left over in the main region. So none
//! of them occupies a granule that a large request could use.
//!
//! If the next layer has no virtual memory management, or if that fails, memory grows in `chunks`.
//!
//! - `search`: the way of one request; `survey`: the best place for a large one
//! - `composition`: how a large request can be placed; `composing`: making a block for it
//! - `aliasing`: granules that are mapped more than once
//! - `granules`, `views`: what is mapped where
//!
//! # How the thresholds were measured
//!
//! Each constant in `search` and `survey` was varied while the others stayed as they are, and `vramshim replay` played
//! traces. `decomfl` is a recorded PyTorch job, which is not in this repository; the others are made by
//! `cargo run -p vramshim-tests --example traces -- FOLDER`, with 20,000 events for `full_16mib` and its like. The figures
//! are utilisation (peak live / peak reserved) and driver calls.

mod chunks;
pub(crate) mod mapping;

pub use chunks::{ChunkRules, Chunks};
