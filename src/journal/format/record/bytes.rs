//! The 56 bytes of a record in the file, and their checksum.

use std::mem::offset_of;

use super::RawRecord;
use crate::bytes::{bytes_at, u32_at, u64_at};
use crate::format::check;

/// Words of eight bytes in a record.
pub(crate) const WORDS: usize = size_of::<RawRecord>() / 8;
/// The words of a record with its time, and with its thread in the lower half.
pub(crate) const TIME: usize = offset_of!(RawRecord, time_ns) / 8;
pub(crate) const THREAD: usize = offset_of!(RawRecord, tid) / 8;

impl RawRecord {
    /// The record in the first 56 bytes of `bytes`, which must not be fewer.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> RawRecord {
        // The one check of the length.
        let bytes = &bytes[..size_of::<RawRecord>()];
        RawRecord {
            time_ns: u64_at(bytes, offset_of!(RawRecord, time_ns)),
            address: u64_at(bytes, offset_of!(RawRecord, address)),
            size: u64_at(bytes, offset_of!(RawRecord, size)),
            allocated: u64_at(bytes, offset_of!(RawRecord, allocated)),
            detail: u64_at(bytes, offset_of!(RawRecord, detail)),
            tid: u32_at(bytes, offset_of!(RawRecord, tid)),
            stack: u32_at(bytes, offset_of!(RawRecord, stack)),
            api: u16::from_le_bytes(bytes_at(bytes, offset_of!(RawRecord, api))),
            device: i16::from_le_bytes(bytes_at(bytes, offset_of!(RawRecord, device))),
            kind: bytes[offset_of!(RawRecord, kind)],
            class: bytes[offset_of!(RawRecord, class)],
            flags: bytes[offset_of!(RawRecord, flags)],
            stream: bytes[offset_of!(RawRecord, stream)],
        }
    }

    /// The 56 bytes of the record, as `from_bytes` reads them.
    pub(crate) fn to_bytes(self) -> [u8; 56] {
        let mut bytes = [0; 56];
        let mut put = |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
        put(offset_of!(RawRecord, time_ns), &self.time_ns.to_le_bytes());
        put(offset_of!(RawRecord, address), &self.address.to_le_bytes());
        put(offset_of!(RawRecord, size), &self.size.to_le_bytes());
        put(offset_of!(RawRecord, allocated), &self.allocated.to_le_bytes());
        put(offset_of!(RawRecord, detail), &self.detail.to_le_bytes());
        put(offset_of!(RawRecord, tid), &self.tid.to_le_bytes());
        put(offset_of!(RawRecord, stack), &self.stack.to_le_bytes());
        put(offset_of!(RawRecord, api), &self.api.to_le_bytes());
        put(offset_of!(RawRecord, device), &self.device.to_le_bytes());
        put(
            offset_of!(RawRecord, kind),
            &[self.kind, self.class, self.flags, self.stream],
        );
        bytes
    }

    /// The record as seven words, whose bytes in memory are those of the record. They are put together from the fields
    /// and not read back from memory, because a wide load would wait for the narrow stores before it.
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let kinds = u64::from(self.api)
            | u64::from(self.device as u16) << 16
            | u64::from(self.kind) << 32
            | u64::from(self.class) << 40
            | u64::from(self.flags) << 48
            | u64::from(self.stream) << 56;
        [
            self.time_ns,
            self.address,
            self.size,
            self.allocated,
            self.detail,
            u64::from(self.tid) | u64::from(self.stack) << 32,
            kinds,
        ]
    }

    /// The record of these words.
    pub(crate) fn from_words(words: [u64; WORDS]) -> RawRecord {
        let mut bytes = [0; size_of::<RawRecord>()];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        RawRecord::from_bytes(&bytes)
    }

    /// The checksum of all fields: 22 bits.
    #[inline(always)]
    pub(crate) fn check(&self) -> u64 {
        check::of_words(self.to_words())
    }
}
