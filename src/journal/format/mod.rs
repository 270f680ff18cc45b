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
//! 6 | checksum         the record is complete: the slot's number plus one and the record's checksum, stored last, with
//!                      Release
//! ```
//!
//! A reader takes a record only if the commit word has the slot's number plus one and the checksum of the record. If a
//! slot has the bit `UNDER_WAY` after the process ended, the slot's event was interrupted, and the other bytes of the
//! slot mean nothing. Any other word means that the slot is damaged.
//!
//! The last sixteenth of the slots is kept free while the file can still grow. If it cannot, these slots become the
//! *ring*: each further record takes the place of the oldest record there, except that failures keep an eighth of the
//! ring. So a full journal has the first records, some failures, and the last records, and counts what it lost.
//!
//! Threads that write at the same time take several slots at once, and a thread that writes alone a few. The slots of one
//! thread are in the order of time, the slots of several threads only nearly. The times in the records give the order of
//! all.
//!
//! The constants and structs of this folder fix all sizes and offsets, and the compiler checks the sizes below. A
//! reader takes sizes and offsets from here, never from the file. If the meaning of a field changes, `VERSION` changes.

/// An enum whose variants have numbers in the file. A number that this version does not know is the first variant.
macro_rules! numbered {
    (
        $(#[$about:meta])*
        pub enum $name:ident: $repr:ident {
            $(#[$first_about:meta])* $first:ident = $first_number:literal,
            $($(#[$variant_about:meta])* $variant:ident = $number:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        pub enum $name {
            $(#[$first_about])* #[default] $first = $first_number,
            $($(#[$variant_about])* $variant = $number,)*
        }

        impl $name {
            pub const ALL: &[$name] = &[$name::$first, $($name::$variant),*];
        }

        impl crate::format::record::Bits for $name {
            #[inline(always)]
            fn bits(self) -> u64 {
                self as u64
            }

            fn of_bits(bits: u64) -> $name {
                match bits as $repr {
                    $($number => $name::$variant,)*
                    _ => $name::$first,
                }
            }
        }
    };
}

pub(crate) mod check;
pub mod frames;
pub mod header;
pub mod record;
pub mod stacks;
pub mod tensors;

pub use frames::{Frame, frames_of_the_job, line_of_the_job};
pub use header::{Device, DeviceEntry, Header, LimitSource};
pub use record::{
    Allocation, Amount, ContextMeasure, Event, FrameworkRequest, HostMemory, LARGEST_RANGE, Listed, MarkKind, MemInfo,
    Mps, ProcessBytes, RawRecord, Reason, Record, ShortName, SurgeShare, Teller, is_possible_device, is_possible_range,
    shares,
};
pub use stacks::{NoStack, STACKS_EXTENSION, STACKS_MAGIC, STACKS_VERSION, Stack, StackKind};
pub use tensors::{TENSORS_EXTENSION, TENSORS_MAGIC, TENSORS_VERSION, TensorEvent, TensorLine};

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

pub const MAGIC: [u8; 8] = *b"VRSJ\r\n\x1a\n";
/// What journals of unreleased builds began with. They are refused by name.
pub const UNRELEASED_MAGIC: [u8; 8] = *b"VRAJ\r\n\x1a\n";
pub const VERSION: u32 = 1;
/// The extension of the names of journal files.
pub const EXTENSION: &str = "vraj";

/// Offset of slot 0; everything before it is the header.
pub const HEADER_SIZE: usize = 16384;
/// Bytes of a slot: the commit word and the record.
pub const SLOT_SIZE: usize = 64;

/// The bit of the commit word that is set from the beginning of an event until its record is complete.
pub const UNDER_WAY: u64 = 1 << 63;

/// The bit of the commit word that is set if the record is complete.
const COMPLETE: u64 = 1 << 62;
/// The place of the checksum in the commit word. The bits below it hold the slot's number plus one.
const CHECK_SHIFT: u32 = 40;

/// A number at an offset of a byte slice. An offset outside the slice panics.
#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut taken = [0; 8];
    taken.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(taken)
}

/// The commit word of a slot whose record is complete.
#[inline(always)]
pub(crate) fn commit_word(index: u64, record: &RawRecord) -> u64 {
    (index + 1) | check::of_words(record.0) << CHECK_SHIFT | COMPLETE
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// No event has used the slot; a thread may hold it in reserve.
    Unused,
    /// An event has begun, and its record is not complete.
    UnderWay,
    Committed(RawRecord),
    /// The bytes are not those that the library wrote.
    Damaged,
}

impl SlotState {
    /// What slot `index` holds, whose bytes are `slot`.
    #[inline]
    pub(crate) fn read(index: u64, slot: &[u8]) -> SlotState {
        let word = u64_at(slot, offset_of!(Slot, commit));
        if word == 0 {
            return SlotState::Unused;
        }
        if word == (index + 1) | UNDER_WAY {
            return SlotState::UnderWay;
        }
        let record = RawRecord::from_bytes(&slot[offset_of!(Slot, record)..]);
        if word == commit_word(index, &record) {
            SlotState::Committed(record)
        } else {
            SlotState::Damaged
        }
    }
}

/// How many slots a thread takes at once while other threads write too. If the thread never writes again, its unused
/// slots waste less than 4 KiB of the file.
pub(crate) const BATCH: u64 = 64;
/// How many slots a thread takes at once that has written alone for `LONE_AFTER` turns of the counter.
pub(crate) const LONE_BATCH: u64 = 8;
pub(crate) const LONE_AFTER: u32 = 32;

/// The largest number of slots of a ring.
pub(crate) const LARGEST_RING: u64 = 1 << 16;

/// How many of `slots` slots are kept free for the ring, while the file has so many.
pub(crate) fn ring_slots(slots: u64) -> u64 {
    (slots / 16).min(LARGEST_RING)
}

/// How many records of failures a ring keeps, whatever comes after them.
pub(crate) fn kept_failures(ring_slots: u64) -> u64 {
    ring_slots / 8
}

#[repr(C)]
pub struct Slot {
    /// The commit word: the slot's number plus one with the record's checksum if the record is complete; the same
    /// number with `UNDER_WAY` while the event is under way; 0 before.
    pub commit: AtomicU64,
    pub record: RawRecord,
}

#[cfg(test)]
mod torn;

const _: () = {
    assert!(size_of::<RawRecord>() == 56);
    assert!(size_of::<Slot>() == SLOT_SIZE);
    assert!(size_of::<DeviceEntry>() == 120);
    assert!(size_of::<Header>() <= HEADER_SIZE);
    assert!(HEADER_SIZE.is_multiple_of(4096));
    // The file is little-endian, and both sides use it as it is in memory.
    assert!(cfg!(target_endian = "little"));
};
