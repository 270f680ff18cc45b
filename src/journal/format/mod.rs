//! The bytes of a journal file: one header of 16 KiB, then slots of 64 bytes, all numbers little-endian.
//!
//! ```text
//! offset 0        header   magic, version, process, devices, counters       (`header`)
//! offset 16384    slot 0   8 bytes commit word, 56 bytes record             (`record`)
//! offset 16448    slot 1   ...
//! ```
//!
//! The writer stores through a shared mapping and may be killed at any instruction. So each slot has a commit word,
//! which shows how much of the slot is written. The commit word of slot 5 takes these values, one after another:
//!
//! ```text
//! 0                    no event has used the slot; a thread may hold the slot in reserve
//! 6 | UNDER_WAY        an event has begun; the record is not written yet
//! 6                    the record is complete: the slot's number plus one, stored last, with Release
//! ```
//!
//! A reader takes a record only if the commit word is the slot's number plus one. If a slot has the bit `UNDER_WAY`
//! after the process ended, the slot's event was interrupted, and the other bytes of the slot mean nothing.
//!
//! Threads that write at the same time take several slots at once. The slots of one thread are in the order of time,
//! the slots of several threads only nearly. The times in the records give the order of all.
//!
//! The constants and structs of this folder fix all sizes and offsets, and the compiler checks the sizes below. A
//! reader takes sizes and offsets from here, never from the file. If the meaning of a field changes, `VERSION` changes.

pub mod header;
pub mod record;
pub mod tensors;

pub use header::{DeviceEntry, Ended, Header, MAX_ROUTES, Route, RouteEntry};
pub use record::{Allocation, Event, MemInfo, RawRecord, Record};
pub use tensors::{Frame, TENSORS_EXTENSION, TENSORS_MAGIC, TENSORS_VERSION, TensorLine};

use std::sync::atomic::AtomicU64;

pub const MAGIC: [u8; 8] = *b"VRAJ\r\n\x1a\n";
/// The format that the library writes. Format 1 has no `UNDER_WAY`: threads took one slot at a time. If a slot before a
/// committed one has the commit word 0 in format 1, the slot's event was interrupted.
pub const VERSION: u32 = 2;
/// The oldest format that the reader reads.
pub const OLDEST_VERSION: u32 = 1;
/// The extension of the names of journal files.
pub const EXTENSION: &str = "vraj";

/// Offset of slot 0; everything before it is the header.
pub const HEADER_SIZE: usize = 16384;
/// Bytes of a slot: the commit word and the record.
pub const SLOT_SIZE: usize = 64;

/// The bit of the commit word that is set from the beginning of an event until its record is complete.
pub const UNDER_WAY: u64 = 1 << 63;

/// A slot of the file.
#[repr(C)]
pub struct Slot {
    /// The commit word: the slot's number plus one if the record is complete; the same with `UNDER_WAY` while the event
    /// is under way; 0 before.
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
