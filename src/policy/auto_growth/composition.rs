//! How a large request can be placed: in a free block as it is, or in a block that is composed for it.
//!
//! A composed block consists of a *first piece*, whole granules, and a *last piece*. A piece is the free part at one
//! end of a granule in use. A piece that reaches the end of its granule can be the first of a block, which then goes on
//! in other granules. A piece at the beginning of its granule can be the last. Each piece is optional. Because a
//! granule can be mapped at several addresses, any first piece and any last piece can be joined in one block.

use crate::blocks::Id;

/// The free part at one end of a granule in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub units: u32,
    /// The free block that the piece is one end of.
    pub free_block: Id,
    /// How many whole granules are beside the piece in that block.
    pub whole_granules: u32,
    /// How many unmapped granules are beside those.
    pub hole_granules: u32,
}

/// Where a composed block will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// In a hole. Its pieces are mapped there as well.
    Hole,
    /// In this free block, which ends with the granules, and in the hole after it.
    After(Id),
    /// In the hole before this free block, which begins with the granules, and in the free block.
    Before(Id),
}

/// A block to be made of pieces and granules that are not side by side yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Composition {
    pub first_piece: Option<Piece>,
    pub last_piece: Option<Piece>,
    pub site: Site,
    /// How many granules must be mapped between the pieces.
    pub granules: u32,
    /// How many of them are new.
    pub new: u32,
    /// Whether the request gets the end of the composed block, so that the rest is at its beginning.
    pub at_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placement {
    /// In a free block as it is. The number says how many units after the beginning of the free block.
    Within(Id, u32),
    Composed(Composition),
}
