//! Batches: the free blocks that become clean together.
//!
//! A block is freed into the open batch of the streams that may still use it. A batch becomes clean in one of two ways:
//! a wait for all work that began after the last block joined the batch has ended, or the events that were recorded on
//! its streams after the last block joined it are done. A batch that a wait has closed gets no more blocks, so that
//! later frees do not put its end off.

use crate::blocks::MAX_LISTS;
use crate::device_memory::EventId;

/// The kind of requests that a segment serves, so that a policy can keep requests of different sizes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Main = 0,
    Small = 1,
    Middle = 2,
    /// Each segment was obtained for a single request. It goes back when a free that waits has freed it.
    Dedicated = 3,
}

impl Region {
    pub const ALL: [Region; 4] = [Region::Main, Region::Small, Region::Middle, Region::Dedicated];
}

/// The part of a free block that a request gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The first part that is aligned as the request wants it.
    Head,
    /// The last one.
    Tail,
}

const REGIONS: u32 = Region::ALL.len() as u32;

/// The number of a batch. Each batch has a list of free blocks in each region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId(u32);

impl BatchId {
    /// The blocks that no work uses.
    pub const CLEAN: Self = BatchId(0);
    /// Blocks that work on any stream may use. This batch always exists, and takes the blocks of others if there are too
    /// many batches.
    pub const UNKNOWN: Self = BatchId(1);
    /// The last list number means that a block is in none.
    pub const MOST: usize = (MAX_LISTS / REGIONS - 1) as usize;

    pub fn new(index: usize) -> Self {
        BatchId(index as u32)
    }

    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The number of the list of free blocks of this batch.
    pub fn list(self, region: Region) -> u32 {
        region as u32 + REGIONS * self.0
    }

    /// The batch that this list belongs to.
    pub fn of_list(list: u32) -> Self {
        BatchId(list / REGIONS)
    }
}

/// Who may still use the blocks of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// No work: the batch is empty, and its number can be given to another batch.
    Vacant,
    /// Work on any stream.
    #[default]
    Unknown,
    /// Work on these streams only, in ascending order.
    Streams(Box<[u64]>),
}

/// The streams that use the memory of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// No request has come yet.
    None,
    One(u64),
    #[default]
    Several,
}

#[derive(Debug, Default)]
pub struct Batch {
    pub users: Users,
    /// The number of the first wait that began after the last block joined; it cleans the batch, as later ones do.
    pub cleaned_by: Option<u64>,
    /// Whether no more blocks may join, so that the events need not be recorded again.
    pub is_closed: bool,
    /// Whether no event can tell when the batch is clean.
    pub takes_no_events: bool,
    /// Different for all batches that ever had this number.
    pub generation: u64,
    /// How many blocks have joined the batch.
    pub joined: u64,
    /// How many frees there had been in all batches when the first block joined, and when the last one did.
    pub first_free: Option<u64>,
    pub last_free: u64,
    /// How many had joined when the engine was last asked to record events.
    pub wanted_at: u64,
    /// How many had joined when `events` were recorded.
    pub recorded_at: u64,
    /// One for each of the streams, recorded after the last block joined if `recorded_at` is `joined`.
    pub events: Vec<EventId>,
}

impl Batch {
    pub fn new(users: Users, generation: u64) -> Self {
        Batch {
            users,
            generation,
            ..Batch::default()
        }
    }

    /// Whether blocks may still join.
    pub fn is_open(&self) -> bool {
        !self.is_closed && self.cleaned_by.is_none()
    }

    /// Whether only work of one stream may use the blocks.
    pub fn has_one_user(&self) -> bool {
        matches!(&self.users, Users::Streams(streams) if streams.len() == 1)
    }

    /// Whether only work of this one stream may use the blocks.
    pub fn is_of(&self, stream: u64) -> bool {
        matches!(&self.users, Users::Streams(streams) if **streams == [stream])
    }

    /// Whether the events tell when the batch is clean.
    pub fn is_recorded(&self) -> bool {
        !self.events.is_empty() && self.recorded_at == self.joined
    }
}
