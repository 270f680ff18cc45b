//! The bytes of a journal file: one header of 16 KiB, then slots of 64 bytes, all numbers little-endian.
//!
//! ```text
//! offset 0        header   magic, version, process, devices, counters       (`header`)
//! offset 16384    slot 0   8 bytes commit word, 56 bytes record             (`record`)
//! offset 16448    slot 1   ...
//! ```
//!
//! The writer stores through a shared mapping and may be killed at any instruction. So the commit word of a slot tells
//! how far its record got. For slot 5 it goes through these values:
//!
//! ```text
//! 0                    no thread has used the slot; a thread may hold it in reserve
//! 6 | UNDER_WAY        an event has begun; the record is not written yet
//! 6                    the record is whole: slot number plus one, stored last, with Release
//! ```
//!
//! A reader takes a record only if its commit word is the slot's number plus one. A slot that is still marked with
//! `UNDER_WAY` after the process ended is an event that was interrupted; its other bytes mean nothing.
//!
//! Threads that write at the same time take several slots at once. So slots are only nearly in the order of time: the
//! records of one thread are in order, and the times put the records of all threads in order.
//!
//! Sizes and offsets are fixed here, and the compiler checks them below. A reader takes them from here, never from the
//! file. If the meaning of a field changes, `VERSION` changes.

pub mod header;
pub mod record;

pub use header::{DeviceEntry, Ended, Header, MAX_ROUTES, Route, RouteEntry};
pub use record::{Allocation, Event, MemInfo, RawRecord, Record};

use std::sync::atomic::AtomicU64;

pub const MAGIC: [u8; 8] = *b"VRAJ\r\n\x1a\n";
/// Format 1 has no `UNDER_WAY`: a thread took one slot at a time, and a slot without a commit word that lies before a
/// committed one is an event that was interrupted.
pub const VERSION: u32 = 2;
pub const OLDEST_VERSION: u32 = 1;
/// Journal files end in `.vraj`.
pub const EXTENSION: &str = "vraj";

/// Offset of slot 0; everything before it is the header.
pub const HEADER_SIZE: usize = 16384;
/// Bytes of a slot: the commit word and the record.
pub const SLOT_SIZE: usize = 64;

/// Bit of the commit word from the moment an event begins until its record is whole.
pub const UNDER_WAY: u64 = 1 << 63;

/// A slot of the file.
#[repr(C)]
pub struct Slot {
    /// The slot's number plus one if the record is whole; the same with `UNDER_WAY` while the event is under way; else
    /// 0.
    pub commit: AtomicU64,
    pub record: RawRecord,
}

const _: () = {
    assert!(size_of::<RawRecord>() == 56);
    assert!(size_of::<Slot>() == SLOT_SIZE);
    assert!(size_of::<DeviceEntry>() == 96);
    assert!(size_of::<Header>() <= HEADER_SIZE);
    assert!(HEADER_SIZE.is_multiple_of(4096));
};
