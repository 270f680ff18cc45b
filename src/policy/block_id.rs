//! The number of a block, by which blocks and the tables of them refer to it.

/// The index of a block; not an address.
pub type Id = u32;
pub const NONE: Id = u32::MAX;
