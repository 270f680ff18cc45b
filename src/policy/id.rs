//! The names of blocks.

/// The index of a block; not an address.
pub type Id = u32;
pub const NONE: Id = u32::MAX;
